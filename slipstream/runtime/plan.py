"""How a model runs: its operators in order, and where in memory each of their arguments is. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

ALIGNMENT = 128
# DLPack's codes of kinds of numbers.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


class Place(Enum):
    """Whose memory a tensor is in. Of inputs, outputs and weights, `offset` is the number; in the arena, bytes."""

    INPUT = "input"
    OUTPUT = "output"
    WEIGHTS = "weights"
    ARENA = "arena"


@dataclass(frozen=True)
class PlannedTensor:
    """An argument of operators. Several may share memory: as views, or one after another."""

    place: Place
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * type_code(self.dtype)[1] // 8


@dataclass(frozen=True)
class Step:
    """A call of a compiled operator on tensors of the plan, on at most `threads` threads."""

    function: str
    arguments: tuple[int, ...]
    threads: int


@dataclass(frozen=True)
class Plan:
    """The calls of a model. `outputs` are tensors; one that lies elsewhere is copied to the output at the end."""

    tensors: tuple[PlannedTensor, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    arena_bytes: int

    def callers_arguments(self) -> dict[str, set[int]]:
        """Which arguments of which function may be memory of the model's caller."""
        found: dict[str, set[int]] = {}
        for step in self.steps:
            for position, index in enumerate(step.arguments):
                if self.tensors[index].place in (Place.INPUT, Place.OUTPUT):
                    found.setdefault(step.function, set()).add(position)
        return found


def type_code(dtype: str) -> tuple[int, int]:
    """DLPack's code and the bits of a type such as `float32`."""
    if dtype == "bool":
        return _CODES[dtype], 8
    kind = dtype.rstrip("0123456789")
    return _CODES[kind], int(dtype.removeprefix(kind))


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
