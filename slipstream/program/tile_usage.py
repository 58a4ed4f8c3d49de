"""What the tiles of a CPU program take up of the machine, computed from its decisions alone.

Of the block that a sketch tiles, each level of loops is described by the bytes of every tensor its inner loops touch,
by the arithmetic done with them, and by how they fill vectors and registers. Rows have one width for all sketches and
operators, so what is learned from one kind of operator can be used for another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from slipstream.machine.target import Target
from slipstream.program.decisions import Decisions
from slipstream.program.operands import Operand, Strides, blocks_of, operand, strides
from slipstream.program.sketch import Sketch

Array = NDArray[np.float64]

LEVELS = 5
OPERANDS = 3
WIDTH = LEVELS * (OPERANDS + 3) + 5
_SPATIAL = tirx.IterVar.DataPar


@dataclass(frozen=True)
class _Loop:
    """A loop over `axis` of the block: `factor` (decision and part) of a tile, or `extent` steps."""

    axis: int
    extent: int = 1
    factor: tuple[int, int] | None = None

    def lengths(self, decisions: Sequence[Decisions]) -> Any:
        if self.factor is None:
            return float(self.extent)
        number, part = self.factor
        return np.array([d[number][part] for d in decisions], dtype=float)  # type: ignore[index]


@dataclass(frozen=True)
class TileUsage:
    """The loops of a sketch's tiled block, outermost first, and its tensors, the one that is written first."""

    axes: int
    loops: tuple[_Loop, ...]
    starts: tuple[int, ...]  # the first loop of each level, innermost level first
    operands: tuple[Operand, ...]
    lanes: int
    registers: int
    threads: int

    def describe(self, decisions: Sequence[Decisions]) -> Array:
        """A row of `WIDTH` numbers for each decision set."""
        inside = [self._lengths(start, decisions) for start in self.starts]
        columns: list[Array] = []
        for level in range(LEVELS):
            # A sketch with fewer levels repeats its outermost one.
            columns += self._level(inside[min(level, len(inside) - 1)])
        innermost = self.operands[0].dimensions[-1]
        filled = np.prod([inside[0][:, axis] for axis, _ in innermost], axis=0) * np.ones(len(decisions))
        outside = self.operands[0].elements(self._lengths(0, decisions).T) / self.operands[0].elements(inside[-1].T)
        columns += [
            np.minimum(1.0, filled / self.lanes),
            np.asarray(filled % self.lanes == 0, dtype=float),
            np.log2(filled),
            np.log2(outside / self.threads),
            np.full(len(decisions), float(len(self.starts))),
        ]
        return np.stack(columns, axis=1)

    def _lengths(self, start: int, decisions: Sequence[Decisions]) -> Array:
        """How much of each axis the loops from `start` inwards cover."""
        lengths = np.ones((len(decisions), self.axes))
        for loop in self.loops[start:]:
            lengths[:, loop.axis] *= loop.lengths(decisions)
        return lengths

    def _level(self, lengths: Array) -> list[Array]:
        touched = [np.ones(len(lengths)) * tensor.bytes(lengths.T) for tensor in self.operands]
        total = np.sum(touched, axis=0)
        sums = self.operands[0].elements(lengths.T) / self.lanes
        shown = [np.log2(part) for part in touched[:OPERANDS]]
        shown += [np.zeros(len(lengths))] * (OPERANDS - len(shown))
        return [*shown, np.log2(total), np.log2(lengths.prod(axis=1) / total), np.log2(sums / self.registers)]


def tile_usage(sketch: Sketch, func: tirx.PrimFunc, target: Target) -> TileUsage | None:
    """None for a sketch that tiles no block, or one whose tensors are not walked linearly."""
    walk = _Walk(sketch, blocks_of(func))
    if walk.block is None or not walk.order:
        return None
    try:
        operands = _operands(walk.block)
    except ValueError:
        return None
    kinds = [int(axis.iter_type) for axis in walk.block.iter_vars]
    loops = tuple(walk.order)
    if not operands or not operands[0].dimensions:
        return None
    return TileUsage(
        axes=len(kinds),
        loops=loops,
        starts=_level_starts(loops, kinds)[:LEVELS],
        operands=operands,
        lanes=target.vector_elements,
        registers=target.vector_registers,
        threads=target.threads,
    )


def _level_starts(loops: Sequence[_Loop], kinds: Sequence[int]) -> tuple[int, ...]:
    """Where levels begin: at a change between loops over results and over sums, and after the outermost tiles."""

    def level_of(loop: _Loop) -> tuple[int, bool]:
        return kinds[loop.axis], kinds[loop.axis] == _SPATIAL and loop.factor is not None and loop.factor[1] == 0

    starts = [n for n in range(1, len(loops)) if level_of(loops[n]) != level_of(loops[n - 1])]
    return tuple(reversed(starts)) or (0,)


class _Walk:
    """The loops of the first block that is tiled, in the order the sketch puts them in."""

    def __init__(self, sketch: Sketch, blocks: Sequence[Any]) -> None:
        self.block: Any = None
        self.order: list[_Loop] = []
        self._blocks = blocks
        self._named: dict[str, Any] = {}
        self._loops: dict[str, _Loop] = {}
        self._owner: dict[str, str] = {}
        variables: dict[str, tuple[int, int]] = {}
        numbers = {position: number for number, position in enumerate(sketch.sampled)}
        for position, (name, inputs, attributes, outputs) in enumerate(sketch.instructions):
            if position in numbers:
                variables.update((out, (numbers[position], n)) for n, out in enumerate(outputs))
            elif name == "GetSBlock":
                number = attributes[0][1:]
                if attributes[0].startswith("#") and number.isdecimal() and int(number) < len(blocks):
                    self._named[outputs[0]] = blocks[int(number)]
            elif name == "GetChildBlocks" and len(outputs) == len(blocks):  # of the root, before anything is inlined
                self._named.update(zip(outputs, blocks, strict=True))
            elif name == "GetLoops" and inputs[0] in self._named:
                axes = self._named[inputs[0]].iter_vars
                if len(axes) == len(outputs):
                    for axis, loop in enumerate(outputs):
                        self._loops[loop] = _Loop(axis, int(axes[axis].dom.extent))
                        self._owner[loop] = inputs[0]
            elif name == "Split" and inputs[0] in self._loops:
                self._split(inputs, outputs, variables)
            elif name == "Reorder" and self._is_tiled(inputs):
                self.block = self._named[self._owner[inputs[0]]]
                self.order = [self._loops[loop] for loop in inputs if loop in self._loops]
                return

    def _split(self, inputs: Sequence[Any], outputs: Sequence[str], variables: dict[str, tuple[int, int]]) -> None:
        whole, factors = self._loops[inputs[0]], inputs[1:]
        known = math.prod(f for f in factors if isinstance(f, int))
        for loop, factor in zip(outputs, factors, strict=True):
            self._owner[loop] = self._owner[inputs[0]]
            if factor in variables:
                self._loops[loop] = _Loop(whole.axis, factor=variables[factor])
            else:
                rest = -(-whole.extent // known)
                self._loops[loop] = _Loop(whole.axis, factor if isinstance(factor, int) else rest)

    def _is_tiled(self, loops: Sequence[str]) -> bool:
        return loops[0] in self._loops and any(self._loops[n].factor for n in loops if n in self._loops)


def _operands(block: Any) -> tuple[Operand, ...]:
    variables = [axis.var for axis in block.iter_vars]
    found: list[Operand] = []
    seen: list[Any] = []
    for region in (*block.writes, *block.reads):
        if not any(region.source.same_as(other) for other in seen):
            seen.append(region.source)
            found.append(operand(region, [_strides(part.min, variables) for part in region.region]))
    return tuple(found)


def _strides(index: Any, variables: Sequence[Any]) -> Strides:
    """Walking a packed tensor by `f // 4` and `f % 4` counts as by `f`."""
    if isinstance(index, tirx.FloorMod):
        return ()
    return strides(index.a if isinstance(index, tirx.FloorDiv) else index, variables)
