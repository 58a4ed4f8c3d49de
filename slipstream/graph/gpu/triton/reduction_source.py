"""The Triton kernel of reductions of rows with given tiles, as source text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import tvm
from tvm.tirx.analysis import undefined_vars

from slipstream.graph.gpu.triton.expressions import TYPES, Names, Writer, power_of_two
from slipstream.graph.gpu.triton.kernel import Kernel
from slipstream.graph.gpu.triton.reduction import LARGEST, SMALLEST, SUM, Reduction, Stage
from slipstream.tvm_bridge.nodes import nodes

CANDIDATES: dict[str, tuple[int, ...]] = {
    "block_rows": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "warps": (1, 2, 4, 8),
    "one_by_one": (0, 1),
}
_MOST_ELEMENTS = 16384
_MOST_ONE_BY_ONE = 64
_ELEMENTS_OF_A_LINE = 64
_NEUTRAL = {SUM: "0.0", LARGEST: 'float("-inf")', SMALLEST: 'float("inf")'}
_COMBINE = {SUM: "{} + {}", LARGEST: "tl.maximum({}, {})", SMALLEST: "tl.minimum({}, {})"}


@dataclass(frozen=True)
class RowTiles:
    """A block reduces `block_rows` rows, each as a whole or, `one_by_one`, an element after the other."""

    block_rows: int
    warps: int
    one_by_one: int


@dataclass(frozen=True)
class RowExtents:
    """So many rows of a length; `stages` reductions, and results for each element if not `reduced` to one a row.

    Elements that lie next to each other in memory are those of one row or, `across`, of different rows.
    """

    rows: int
    length: int
    stages: int
    reduced: bool
    across: bool

    @classmethod
    def of(cls, reduction: Reduction) -> RowExtents:
        first = reduction.stages[0]
        across = _walks_rows(first)
        return cls(reduction.rows, reduction.length, len(reduction.stages), not reduction.result.inner, across)

    def refusal(self, tiles: RowTiles) -> str:
        """Why a GPU cannot run these, or why others are better in every case; empty if neither."""
        if tiles.block_rows > power_of_two(self.rows):
            return "more rows than there are"
        if tiles.one_by_one:
            if not self.reduced or self.stages > 1 or self.length > _MOST_ONE_BY_ONE:
                return "elements are needed more than once"
            return "fewer rows than threads" if tiles.block_rows < 32 * tiles.warps else ""
        elements = tiles.block_rows * power_of_two(self.length)
        if elements > _MOST_ELEMENTS:
            return "more elements than registers"
        return "fewer elements than threads" if elements < 32 * tiles.warps else ""

    def start(self, processors: int) -> RowTiles | None:
        """Tiles that should be good: some elements for each thread, and a block for each processor."""
        fitting = [tiles for values in product(*CANDIDATES.values()) if not self.refusal(tiles := RowTiles(*values))]
        return min(fitting, key=lambda tiles: self._estimate(tiles, processors), default=None)

    def _estimate(self, tiles: RowTiles, processors: int) -> float:
        blocks = -(-self.rows // tiles.block_rows)
        length = self.length if tiles.one_by_one else power_of_two(self.length)
        each = tiles.block_rows * length / (32 * tiles.warps)
        if self.across:
            each *= max(1, _ELEMENTS_OF_A_LINE / tiles.block_rows)
        rounds = max(1.0, blocks * tiles.warps / (16 * processors))
        return rounds * (8 + each) + (0 if tiles.one_by_one else 2 * tiles.warps)


def reduction_kernel(reduction: Reduction, tiles: RowTiles, *, overlaps: bool = False) -> Kernel:
    """Raise `InexpressibleError` if an expression of it has no Triton code."""
    pointers = {parameter: f"p{place}" for place, parameter in enumerate(reduction.parameters)}
    lines = ["import triton", "import triton.language as tl", "", "", "@triton.jit"]
    lines.append(f"def kernel({', '.join(pointers.values())}):")
    body = [*(["tl.extra.cuda.gdc_wait()"] if overlaps else []), *_Body(reduction, tiles, pointers).lines()]
    return Kernel(
        source="\n".join([*lines, *(f"    {line}" for line in body), ""]),
        types=tuple(str(parameter.ty.dtype) for parameter in reduction.parameters),
        grid=(-(-reduction.rows // tiles.block_rows), 1, 1),
        warps=tiles.warps,
        stages=1,
        overlaps=overlaps,
    )


class _Body:
    def __init__(self, reduction: Reduction, tiles: RowTiles, pointers: dict[Any, str]) -> None:
        self.reduction, self.tiles, self.pointers = reduction, tiles, pointers
        self.shape = "" if tiles.one_by_one else "[:, None]"
        self.guard = f"(row < {reduction.rows}){self.shape}" if reduction.rows % tiles.block_rows else ""
        self.known: dict[Any, str] = {}

    def lines(self) -> list[str]:
        t = self.tiles
        lines = [f"row = tl.program_id(0) * {t.block_rows} + tl.arange(0, {t.block_rows})"]
        for number, stage in enumerate(self.reduction.stages):
            lines += self._one_by_one(stage, number) if t.one_by_one else self._whole(stage, number)
            self.known[stage.buffer] = f"reduced_{number}"
        return [*lines, *self._store()]

    def _whole(self, stage: Stage, number: int) -> list[str]:
        """All elements of the rows at once."""
        lines, names = self._variables(stage, f"s{number}")
        length = prod(extent for _, extent in stage.inner)
        inside = self._within(f"s{number}", length)
        value = Writer(self.pointers, names, self.known).value(stage.value, inside)
        shape = f"({self.tiles.block_rows}, {power_of_two(length)})"
        lines.append(f"value_{number} = tl.broadcast_to({value}, {shape})")
        if inside:
            lines.append(f"value_{number} = tl.where({inside}, value_{number}, {_NEUTRAL[stage.kind]})")
        return [*lines, f"reduced_{number} = tl.{stage.kind}(value_{number}, 1)[:, None]"]

    def _one_by_one(self, stage: Stage, number: int) -> list[str]:
        t = self.tiles
        length = prod(extent for _, extent in stage.inner)
        names, lines = self._row_names(stage, f"s{number}")
        lines.append(f"reduced_{number} = tl.full(({t.block_rows},), {_NEUTRAL[stage.kind]}, tl.float32)")
        stride, inner = length, []
        for place, (variable, extent) in enumerate(stage.inner):
            stride //= extent
            names[variable] = f"element_{place}"
            inner.append(f"    element_{place} = element // {stride} % {extent}")
        value = Writer(self.pointers, names, self.known, set()).value(stage.value, self.guard)
        combined = _COMBINE[stage.kind].format(f"reduced_{number}", value)
        return [*lines, f"for element in tl.static_range({length}):", *inner, f"    reduced_{number} = {combined}"]

    def _store(self) -> list[str]:
        result = self.reduction.result
        length = prod(extent for _, extent in result.inner)
        if self.tiles.one_by_one:
            names, lines = self._row_names(result, "r")
            inside, shape = self.guard, f"({self.tiles.block_rows},)"
        else:
            lines, names = self._variables(result, "r")
            wide = power_of_two(length) if length > 1 else 1
            inside, shape = self._within("r", length), f"({self.tiles.block_rows}, {wide})"
        writer = Writer(self.pointers, names, self.known)
        value = f"({writer.value(result.value, inside)}).to({TYPES[str(result.buffer.dtype)]})"
        place = writer.address(result.buffer, result.indices)
        mask = f", mask={inside}" if inside else ""
        stored = f"tl.store(tl.broadcast_to({place}, {shape}), tl.broadcast_to({value}, {shape}){mask})"
        return [*lines, stored]

    def _variables(self, stage: Stage, prefix: str) -> tuple[list[str], dict[Any, str]]:
        """The loops' variables for a tile of rows and elements."""
        names, lines = self._row_names(stage, prefix)
        length = prod(extent for _, extent in stage.inner)
        if length > 1:
            lines.append(f"{prefix}_element = tl.arange(0, {power_of_two(length)})")
        stride = length
        for place, (variable, extent) in enumerate(stage.inner):
            stride //= extent
            names[variable] = f"{prefix}_element_{place}"
            text = f"{prefix}_element // {stride}" if stride > 1 else f"{prefix}_element"
            lines.append(f"{prefix}_element_{place} = ({text}{f' % {extent}' if place else ''})[None, :]")
        return lines, names

    def _row_names(self, stage: Stage, prefix: str) -> tuple[dict[Any, str], list[str]]:
        names, lines = Names(), []
        stride = prod(extent for _, extent in stage.rows)
        for place, (variable, extent) in enumerate(stage.rows):
            stride //= extent
            names[variable] = f"{prefix}_row_{place}"
            text = f"row // {stride}" if stride > 1 else "row"
            lines.append(f"{prefix}_row_{place} = ({text}{f' % {extent}' if place else ''}){self.shape}")
        return names, lines

    def _within(self, prefix: str, length: int) -> str:
        inside = f"({prefix}_element < {length})[None, :]" if length != power_of_two(length) and length > 1 else ""
        return " & ".join(part for part in (self.guard, inside) if part)


def _walks_rows(stage: Stage) -> bool:
    """Whether the largest tensor that is read is contiguous along the rows' loops."""
    loads = [load for load in nodes(stage.value, tvm.ir.expr.TensorLoad) if len(load.indices)]
    largest = max(loads, key=lambda load: prod(map(int, load.source.shape)))
    inner = {variable for variable, _ in stage.inner}
    return not inner & set(undefined_vars(largest.indices[-1]))
