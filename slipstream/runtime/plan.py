"""How a model runs: its operators in order, and where in memory each of their arguments is. Plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from math import prod

ALIGNMENT = 128
# What operators count on, unless they are built for arguments that begin anywhere.
OPERATORS_ALIGNMENT = 64
BOX = "_box"
"""Between the name of a function and a number, where it was built for parts of larger tensors."""
# What TVM adds to the name of a function whose weights it has stored anew.
_PREPACKED = "_prepacked"
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
    """An argument of operators. Several may share memory: as views, as parts of one, or one after another."""

    place: Place
    offset: int
    shape: tuple[int, ...]
    dtype: str
    begin: int = 0
    """Bytes after the offset, or after the beginning of an input, output or weight."""

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

    def unaligned_arguments(self) -> dict[str, set[int]]:
        """Which arguments of which function may begin anywhere: memory of the model's caller, and parts of tensors."""
        found: dict[str, set[int]] = {}
        for step in self.steps:
            for position, index in enumerate(step.arguments):
                tensor = self.tensors[index]
                if tensor.place in (Place.INPUT, Place.OUTPUT) or tensor.begin % OPERATORS_ALIGNMENT:
                    found.setdefault(step.function, set()).add(position)
        return found


def prepared_name(function: str) -> str:
    """The name in the prepared model of what a step calls: before weights were packed and places in memory known."""
    return re.sub(rf"{BOX}\d+$", "", function).removesuffix(_PREPACKED)


def type_code(dtype: str) -> tuple[int, int]:
    """DLPack's code and the bits of a type such as `float32`."""
    if dtype == "bool":
        return _CODES[dtype], 8
    kind = dtype.rstrip("0123456789")
    return _CODES[kind], int(dtype.removeprefix(kind))


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
