"""What a contraction's Triton program decides, which decisions a GPU can run, and good ones to start from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from slipstream.graph.gpu.triton.expressions import power_of_two

# In the order of `Tiles`' fields: what may be decided. Equal for all operators, so that decisions can be transferred.
CANDIDATES: dict[str, tuple[int, ...]] = {
    "block_rows": (16, 32, 64, 128, 256),
    "block_columns": (16, 32, 64, 128, 256),
    "block_sum": (16, 32, 64, 128, 256),
    "splits": (1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32),
    "stages": (1, 2, 3, 4, 5, 6),
    "warps": (2, 4, 8),
    "rows_first": (0, 1),
}
_MOST_SUMS_OF_A_THREAD = 128
_MOST_SCRATCH_BYTES = 32 << 20
_MOST_BLOCKS = 1 << 16
_WARP_GROUP_ROWS = 64


@dataclass(frozen=True)
class Tiles:
    """A block computes `block_rows` x `block_columns` sums, `block_sum` terms at a time, of which `stages` are on their
    way from memory; each sum is divided among `splits` blocks.
    """

    block_rows: int
    block_columns: int
    block_sum: int
    splits: int
    stages: int
    warps: int
    rows_first: int


@dataclass(frozen=True)
class Extents:
    """The size of a contraction and of its elements."""

    batch: int
    rows: int
    columns: int
    terms: int
    element_bytes: int

    def tiles(self, tiles: Tiles) -> int:
        """Tiles of the result."""
        return self.batch * -(-self.rows // tiles.block_rows) * -(-self.columns // tiles.block_columns)

    def steps(self, tiles: Tiles) -> int:
        """How many times `block_sum` terms a sum has."""
        return -(-self.terms // tiles.block_sum)

    def scratch_bytes(self, tiles: Tiles) -> int:
        """What the parts of divided sums take until they are added."""
        if tiles.splits == 1:
            return 0
        return 4 * self.tiles(tiles) * tiles.splits * tiles.block_rows * tiles.block_columns

    def refusal(self, tiles: Tiles, shared_bytes: int) -> str:
        """Why a GPU cannot run these, or why others are better in every case; empty if neither."""
        if tiles.block_rows > _fitting(self.rows) or tiles.block_columns > _fitting(self.columns):
            return "a tile larger than the result"
        if tiles.block_sum > _fitting(self.terms):
            return "more terms at a time than there are"
        if tiles.block_rows * tiles.block_columns > 32 * tiles.warps * _MOST_SUMS_OF_A_THREAD:
            return "more sums than registers"
        if tiles.block_rows * tiles.block_columns < 32 * tiles.warps:
            return "fewer sums than threads"
        loaded = (tiles.block_rows + tiles.block_columns) * tiles.block_sum * self.element_bytes
        # A warp group of Hopper's multiplies what the next step overwrites otherwise.
        copies = tiles.stages if tiles.block_rows >= _WARP_GROUP_ROWS else max(tiles.stages - 1, 1)
        if copies * loaded > shared_bytes:
            return "more than the shared memory"
        if tiles.splits > self.steps(tiles) or self.steps(tiles) < tiles.stages - 1:
            return "more parts or stages than steps"
        if self.scratch_bytes(tiles) > _MOST_SCRATCH_BYTES or self.tiles(tiles) * tiles.splits > _MOST_BLOCKS:
            return "too many blocks"
        return ""

    def start(self, shared_bytes: int, processors: int) -> Tiles | None:
        """Tiles that should be good: about one block for each processor, large enough to reuse what is loaded."""
        return min(
            (tiles for tiles in _usual() if not self.refusal(tiles, shared_bytes)),
            key=lambda tiles: self._estimate(tiles, processors),
            default=None,
        )

    def _estimate(self, tiles: Tiles, processors: int) -> float:
        """Microseconds, roughly: steps that wait for memory, load and multiply, and adding up the parts.

        Fitted to 162 programs of four matmuls on an H200; it is wrong by about a fifth.
        """
        steps = -(-self.steps(tiles) // tiles.splits)
        waiting = 0.16 / (1 + 0.77 * (min(tiles.stages, steps + 1) - 1))
        loaded = (tiles.block_rows + tiles.block_columns) * tiles.block_sum * self.element_bytes
        multiplied = tiles.block_rows * tiles.block_columns * tiles.block_sum
        each = 5e-8 if tiles.block_rows >= _WARP_GROUP_ROWS else 3.8e-7
        parts = 0.0 if tiles.splits == 1 else 0.1 + 1.4e-4 * tiles.splits * tiles.block_rows * tiles.block_columns
        rounds = max(1.0, self.tiles(tiles) * tiles.splits / processors)
        return 1.8 + rounds * (steps * (waiting + 1.06e-5 * loaded + each * multiplied) + parts)


def _usual() -> Iterator[Tiles]:
    for rows, columns, terms, splits in product(
        (16, 32, 64, 128), (16, 32, 64, 128), (16, 32, 64, 128), CANDIDATES["splits"]
    ):
        warps = 8 if rows * columns > 8192 else 4
        for stages in (4, 3, 2, 1):
            yield Tiles(rows, columns, terms, splits, stages, warps, 1)


def _fitting(extent: int) -> int:
    """The largest tile of an extent that is not mostly empty; tensor cores multiply 16 at a time."""
    return max(16, power_of_two(extent))
