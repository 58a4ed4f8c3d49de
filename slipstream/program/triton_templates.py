"""Triton templates as sketches: their decisions are sizes, and what a GPU can run is computed from them alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx

from slipstream.graph.gpu.triton.contraction import Contraction
from slipstream.graph.gpu.triton.contraction_source import contraction_kernel, extents_of
from slipstream.graph.gpu.triton.default_tiles import can_overlap, find_template, start_tiles
from slipstream.graph.gpu.triton.kernel import with_kernel
from slipstream.graph.gpu.triton.tiles import CANDIDATES, Extents, Tiles
from slipstream.machine.target import Target
from slipstream.program.decisions import Decisions, IllegalDecisionError
from slipstream.program.sketch import SCALE, Sketch

TRITON = "triton:contraction"  # the form of the sketch
_MOST_DRAWS = 2000
_CONTRACTION = Sketch(
    json.dumps(
        {
            "form": TRITON,
            "instructions": [[SCALE, [], [list(values)], [name]] for name, values in CANDIDATES.items()],
        },
        separators=(",", ":"),
    )
)


@dataclass(frozen=True)
class Template:
    """An operator as a contraction on a GPU: good decisions to `start` from, checks, random ones, and the program."""

    func: tirx.PrimFunc
    contraction: Contraction
    extents: Extents
    shared_bytes: int
    start: Decisions
    overlaps: bool

    sketch = _CONTRACTION
    says_all = True

    @classmethod
    def of(cls, func: tirx.PrimFunc, target: Target) -> Template | None:
        """The template's view of an operator; None where Triton is not installed or has no kernel for it."""
        contraction = find_template(func, target)
        if contraction is None or target.gpu is None:
            return None
        tiles = start_tiles(contraction, target)
        if tiles is None:
            return None
        extents, shared = extents_of(contraction), target.gpu.shared_bytes
        return cls(func, contraction, extents, shared, _decisions(tiles), can_overlap(target))

    def check(self, decisions: Decisions) -> None:
        """Raise `IllegalDecisionError` for what the GPU cannot run."""
        if refusal := self.extents.refusal(_tiles(decisions), self.shared_bytes):
            raise IllegalDecisionError(refusal)

    def allowed(self, drawn: Sequence[Decisions]) -> NDArray[np.bool_]:
        """Which of many pass `check`."""
        return np.array([not self.extents.refusal(_tiles(d), self.shared_bytes) for d in drawn], dtype=bool)

    def draw(self, rng: np.random.Generator) -> Decisions:
        """Decisions at random that pass `check`."""
        sizes = [len(values) for values in CANDIDATES.values()]
        for _ in range(_MOST_DRAWS):
            decisions = tuple(int(rng.integers(size)) for size in sizes)
            if not self.extents.refusal(_tiles(decisions), self.shared_bytes):
                return decisions
        return self.start

    def module(self, decisions: Decisions) -> tvm.IRModule:
        """The operator with the kernel of these decisions."""
        kernel = contraction_kernel(self.contraction, _tiles(decisions), overlaps=self.overlaps)
        return tvm.IRModule({"main": with_kernel(self.func, kernel).with_attr("global_symbol", "main")})


def _tiles(decisions: Decisions) -> Tiles:
    values = zip(CANDIDATES.values(), decisions, strict=True)
    return Tiles(*(candidates[index] for candidates, index in values if isinstance(index, int)))


def _decisions(tiles: Tiles) -> Decisions:
    return tuple(values.index(getattr(tiles, name)) for name, values in CANDIDATES.items())
