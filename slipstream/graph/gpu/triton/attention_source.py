"""The Triton kernel of an attention with given tiles, as source text.

A block holds some rows of the query and goes through the columns a tile at a time, with the maximum and the total of
the exponentials so far: Dao et al., "FlashAttention" (2022), algorithm 1, and Milakov and Gimelshein, "Online
normalizer calculation for softmax" (2018). No score is ever written to memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from slipstream.graph.gpu.triton.attention import Attention
from slipstream.graph.gpu.triton.expressions import TYPES, Names, Writer, power_of_two

# In the order of `AttentionTiles`' fields: what may be decided, for all operators.
CANDIDATES: dict[str, tuple[int, ...]] = {
    "block_rows": (16, 32, 64, 128),
    "block_columns": (16, 32, 64, 128),
    "stages": (1, 2, 3, 4),
    "warps": (1, 2, 4, 8),
}
_LEAST = "-3.4028234663852886e38"
_LEAST_TOTAL = "1e-30"  # of a row with any score it is at least 1; one without is zero
_LEAST_SIZE = 16  # of a matrix that tensor cores multiply
_MOST_NUMBERS_OF_A_THREAD = 192


@dataclass(frozen=True)
class AttentionTiles:
    """A block computes `block_rows` rows from `block_columns` columns at a time, `stages` of which are on their way."""

    block_rows: int
    block_columns: int
    stages: int
    warps: int


@dataclass(frozen=True)
class AttentionExtents:
    """The size of an attention and of its elements."""

    batches: int
    rows: int
    columns: int
    inner: int
    features: int
    element_bytes: int

    @classmethod
    def of(cls, attention: Attention) -> AttentionExtents:
        return cls(attention.batches, *attention.sizes, 4 if attention.dtype == "float32" else 2)

    def refusal(self, tiles: AttentionTiles, shared_bytes: int) -> str:
        """Why a GPU cannot run these, or why others are better in every case; empty if neither."""
        if tiles.block_rows > fitting(self.rows) or tiles.block_columns > fitting(self.columns):
            return "a tile larger than the result"
        if tiles.stages > max(1, -(-self.columns // tiles.block_columns)):
            return "more stages than steps"
        wide = fitting(self.inner) + fitting(self.features)
        numbers = tiles.block_rows * (tiles.block_columns + wide)
        if numbers > 32 * tiles.warps * _MOST_NUMBERS_OF_A_THREAD:
            return "more numbers than registers"
        if tiles.block_rows * tiles.block_columns < 32 * tiles.warps:
            return "fewer scores than threads"
        loaded = tiles.stages * tiles.block_columns * wide + tiles.block_rows * (wide + tiles.block_columns)
        return "more than the shared memory" if loaded * self.element_bytes > shared_bytes else ""

    def start(self, shared_bytes: int, processors: int) -> AttentionTiles | None:
        """Tiles that should be good: about two blocks for each processor, as many columns at a time as possible."""
        fitting = [tiles for tiles in _all() if not self.refusal(tiles, shared_bytes)]
        return min(fitting, key=lambda tiles: self._estimate(tiles, processors), default=None)

    def _estimate(self, tiles: AttentionTiles, processors: int) -> tuple[float, int]:
        """Relative time: blocks that follow each other on a processor, the steps of each, and what a step takes."""
        waves = -(-self.batches * -(-self.rows // tiles.block_rows) // (2 * processors))
        steps = -(-self.columns // tiles.block_columns)
        work = tiles.block_columns * (64 + tiles.block_rows) * (self.inner + self.features) / (16384 * tiles.warps)
        return waves * (20 + steps * (8 + work + 3 * tiles.warps)), abs(tiles.stages - 2)

    def grid(self, tiles: AttentionTiles) -> tuple[int, int, int]:
        return (-(-self.rows // tiles.block_rows), self.batches, 1)


def _all() -> Iterator[AttentionTiles]:
    for values in product(*CANDIDATES.values()):
        yield AttentionTiles(*values)


def attention_source(attention: Attention, tiles: AttentionTiles, *, overlaps: bool = False) -> str:
    """The text of a module with the function `kernel`, which takes a pointer to each of the operator's arguments.

    With `overlaps` it starts while the kernel before it ends, and waits for that before it reads.
    """
    pointers = {parameter: f"p{place}" for place, parameter in enumerate(attention.parameters)}
    body = _Body(attention, tiles, pointers)
    begin = ["tl.extra.cuda.gdc_wait()"] if overlaps else []
    lines = ["import triton", "import triton.language as tl", "", "", "@triton.jit"]
    lines.append(f"def kernel({', '.join(pointers.values())}):")
    return "\n".join([*lines, *(f"    {line}" for line in [*begin, *body.lines()]), ""])


class _Body:
    def __init__(self, attention: Attention, tiles: AttentionTiles, pointers: Mapping[Any, str]) -> None:
        self.attention, self.tiles, self._pointers = attention, tiles, pointers
        self._names: dict[Any, str] = {}
        self._scalars: set[str] = set()
        self.rows, self.columns, self.inner, self.features = attention.sizes
        self.wide_inner, self.wide_features = fitting(self.inner), fitting(self.features)

    def lines(self) -> list[str]:
        a, t = self.attention, self.tiles
        precision = ', input_precision="tf32"' if a.dtype == "float32" else ""
        batch = self._batch()
        score = self._writer({a.row: "(row)[:, None]", a.column: "(column)[None, :]"}, {a.products: "products"})
        lines = [
            "batch = tl.program_id(1)",
            *batch,
            f"row = tl.program_id(0) * {t.block_rows} + tl.arange(0, {t.block_rows})",
            f"inner = tl.arange(0, {self.wide_inner})",
            f"feature = tl.arange(0, {self.wide_features})",
            f"query = {self._tile('row', 'inner', a.query)}",
            f"top = tl.full(({t.block_rows},), {_LEAST}, tl.float32)",
            f"total = tl.zeros(({t.block_rows},), tl.float32)",
            f"mixed = tl.zeros(({t.block_rows}, {self.wide_features}), tl.float32)",
            f"for step in range({-(-self.columns // t.block_columns)}):",
            f"    column = step * {t.block_columns} + tl.arange(0, {t.block_columns})",
            f"    key = {self._tile('inner', 'column', a.key)}",
            f"    products = tl.dot(query, key{precision})",
            f"    score = {score.value(a.score, self._guard('row', 'column'))}",
            *(
                [f"    score = tl.where({self._guard('column', down=False)}, score, float('-inf'))"]
                * self._cut("column")
            ),
            "    higher = tl.maximum(top, tl.max(score, 1))",
            "    weight = tl.exp(score - higher[:, None])",
            "    shrink = tl.exp(top - higher)",
            "    total = total * shrink + tl.sum(weight, 1)",
            f"    value = {self._tile('column', 'feature', a.value)}",
            f"    mixed = tl.dot(weight.to({TYPES[a.dtype]}), value, mixed * shrink[:, None]{precision})",
            "    top = higher",
            f"mixed = mixed / tl.maximum(total, {_LEAST_TOTAL})[:, None]",
        ]
        return [*lines, self._store()]

    def _batch(self) -> list[str]:
        lines, stride = [], self.attention.batches
        for number, (variable, extent) in enumerate(self.attention.batch):
            stride //= extent
            self._names[variable] = f"batch_{number}"
            self._scalars.add(f"batch_{number}")
            text = "batch" if stride == 1 else f"batch // {stride}"
            lines.append(f"batch_{number} = {text}" + (f" % {extent}" if number else ""))
        return lines

    def _tile(self, down: str, across: str, factor: Any) -> str:
        """A matrix of a factor's elements, zero outside of it."""
        variables = {getattr(self.attention, down): f"({down})[:, None]"}
        variables[getattr(self.attention, across)] = f"({across})[None, :]"
        text = self._writer(variables).factor(factor, self._guard(down, across), self.attention.dtype)
        return f"tl.broadcast_to({text}, ({self._size(down)}, {self._size(across)}))"

    def _store(self) -> str:
        a = self.attention
        writer = self._writer({a.row: "(row)[:, None]", a.feature: "(feature)[None, :]"}, {a.mixed: "mixed"})
        guard = self._guard("row", "feature")
        value = f"({writer.value(a.result, guard)}).to({TYPES[str(a.output.dtype)]})"
        mask = f", mask={guard}" if guard else ""
        return f"tl.store({writer.address(a.output, a.indices)}, {value}{mask})"

    def _writer(self, variables: dict[Any, str], replaced: dict[Any, str] | None = None) -> Writer:
        return Writer(self._pointers, Names({**self._names, **variables}), replaced or {}, self._scalars)

    def _guard(self, *names: str, down: bool = True) -> str:
        shapes = ("[:, None]", "[None, :]") if down else ("[None, :]",)
        parts = [f"({n} < {self._extent(n)}){s}" for n, s in zip(names, shapes, strict=True) if self._cut(n)]
        return " & ".join(parts)

    def _cut(self, name: str) -> bool:
        """Whether the last tile along an axis is not full."""
        return self._extent(name) % self._size(name) != 0

    def _extent(self, name: str) -> int:
        return {"row": self.rows, "column": self.columns, "inner": self.inner, "feature": self.features}[name]

    def _size(self, name: str) -> int:
        """Of a tile along an axis."""
        t = self.tiles
        sizes = {"row": t.block_rows, "column": t.block_columns}
        return sizes.get(name) or (self.wide_inner if name == "inner" else self.wide_features)


def fitting(extent: int) -> int:
    """The least power of two that an extent fits in, and tensor cores can multiply."""
    return max(_LEAST_SIZE, power_of_two(extent))
