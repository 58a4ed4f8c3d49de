"""Chooses the register tile of a contraction: how many accumulators to keep in vector registers at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from slipstream.graph.cpu.pipeline import STACK_BYTES
from slipstream.graph.parallelism import threads_worth
from slipstream.graph.schedule_blocks import (
    DATA_PARALLEL,
    divisors,
    elements_of,
    extent_of,
    is_minor,
    iterations,
    split_by_kind,
    uses,
    vector_width,
)
from slipstream.machine.dot_product import DotProduct
from slipstream.machine.target import Target
from slipstream.tvm_bridge.nodes import nodes

# Sums of a depthwise convolution: each loads a factor of its own, so more of them save no loads. 28 took 1.3 times as
# long (AVX-512).
_MOST_DEPTHWISE_SUMS = 16
_EVEN = 1.05  # less imbalance than this is not worth a worse tile: the estimate of tiles is no more exact


@dataclass(frozen=True)
class Tile:
    """`rows` x (`vectors` x `lanes`) accumulators; rows along data-parallel axis number `row_axis`."""

    row_axis: int | None
    rows: int
    vectors: int
    lanes: int


def choose_tile(sch: s_tir.Schedule, block: Any, target: Target, dot: tuple[DotProduct, int] | None = None) -> Tile:
    """The tile with the least estimated time per multiply-add, or per step of the dot product, on the busiest core."""
    spatial, _ = split_by_kind(sch, block)
    *outer, columns = (extent_of(sch, loop) for loop in spatial)
    row_axes = [(axis, extent) for axis, extent in enumerate(outer) if _shares_columns(sch, block, axis)]
    cores = _Cores(_cores_worth(sch, block, target), math.prod(outer) * columns)
    if dot is not None:
        return _choose_dot_tile(columns, row_axes, cores, target, *dot)
    size = tvm.DataType(str(sch.get(block).writes[0].source.dtype)).itemsize
    register = target.vector_lanes * 2 if size == 2 else target.vector_lanes
    group = _group_size(sch, block)
    most = target.vector_registers - 4
    if group == 0 and len(_reads_along_columns(sch, block)) == 2:
        most = min(most, _MOST_DEPTHWISE_SUMS)
    candidates = (
        Tile(axis, rows, vectors, lanes)
        for lanes in divisors(math.gcd(columns, group), register)
        for vectors in divisors(columns // lanes, most)
        for axis, extent in [*reversed(row_axes), (None, 1)]
        for rows in divisors(extent, most // vectors)
    )
    return min(
        candidates, key=lambda tile: _time_per_multiply_add(tile, target, register, size) * cores.imbalance(tile)
    )


@dataclass(frozen=True)
class _Cores:
    """So many cores share tiles of so many `elements`."""

    count: int
    elements: int

    def imbalance(self, tile: Tile) -> float:
        """How many times as long as with equal shares the busiest core takes: with 5 tiles, 3 of 8 cores only wait."""
        tiles = self.elements / (tile.rows * tile.vectors * tile.lanes)
        return max(_EVEN, math.ceil(tiles / self.count) * self.count / tiles)


def _cores_worth(sch: s_tir.Schedule, block: Any, target: Target) -> int:
    if is_minor(sch, block, target):
        return 1
    reads = (read.source for read in sch.get(block).reads)
    nbytes = (elements_of(source) * tvm.DataType(str(source.dtype)).itemsize for source in reads)
    return min(target.threads, threads_worth(2 * iterations(sch, block), nbytes, target.vector_lanes))


def _choose_dot_tile(
    columns: int, row_axes: list[tuple[int, int]], cores: _Cores, target: Target, dot: DotProduct, width: int
) -> Tile:
    """A step has `width // dot.group` instructions for each sum; all weights of a step are in registers as well."""
    steps = width // dot.group
    registers_each = dot.lanes // target.vector_lanes

    def time(tile: Tile) -> float:
        vectors = tile.vectors * registers_each
        sums = tile.rows * vectors
        loads = 2.0 * vectors * steps + tile.rows
        time = max(sums * steps, loads, 8 * steps) + 0.1 * loads + 1 / vectors  # short vectors of bytes at the end
        registers = sums + vectors * steps + 2
        spilled = 1.0 if registers <= target.vector_registers else 1.5
        return time / (sums * steps) * spilled * cores.imbalance(tile)

    candidates = (
        Tile(axis, rows, vectors, dot.lanes)
        for vectors in divisors(math.gcd(columns // dot.lanes, 8), 8)  # the epilogue writes them as one vector
        for axis, extent in [*reversed(row_axes), (None, 1)]
        for rows in divisors(extent, max(1, (target.vector_registers - 4) // (vectors * registers_each)))
    )
    return min(candidates, key=time)


def _shares_columns(sch: s_tir.Schedule, block: Any, axis: int) -> bool:
    """Whether an operand read along the columns is the same for all of data-parallel axis number `axis`."""
    variable = _data_parallel(sch, block)[axis]
    return any(not uses(read, variable) for read in _reads_along_columns(sch, block))


def _reads_along_columns(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Both operands in a depthwise convolution."""
    columns = _data_parallel(sch, block)[-1]
    return [read for read in sch.get(block).reads if uses(read, columns)]


def _data_parallel(sch: s_tir.Schedule, block: Any) -> list[Any]:
    return [iter_var.var for iter_var in sch.get(block).iter_vars if int(iter_var.iter_type) == DATA_PARALLEL]


def _group_size(sch: s_tir.Schedule, block: Any) -> int:
    """How many neighbouring columns read the same inputs: the channels of a group; 0 (any) without groups."""
    stmt = sch.get(block)
    columns = _data_parallel(sch, block)[-1]
    divisions = [one for read in stmt.reads for part in read.region for one in nodes(part.min, tirx.FloorDiv)]
    return math.gcd(*(int(one.b) for one in divisions if one.a.same_as(columns)))


def time_of_row(columns: int, filters: int, target: Target) -> float:
    """The estimated time of a row of a convolution's results, in its best register tile."""
    lanes = math.gcd(filters, target.vector_elements)
    most = target.vector_registers - 4
    size = 4 * target.vector_lanes // target.vector_elements
    tiles = (
        Tile(None, rows, vectors, lanes)
        for vectors in divisors(filters // lanes, most)
        for rows in divisors(columns, most // vectors)
    )
    return columns * min(_time_per_multiply_add(tile, target, target.vector_elements, size) for tile in tiles)


def _time_per_multiply_add(tile: Tile, target: Target, register: int, size: int) -> float:
    """A register model: instructions of a reduction step over its multiply-adds. 1.0 is the peak of vectors of
    `register` elements of `size` bytes.

    Each step loads `vectors` operands that stream from a farther cache, broadcasts `rows` near ones, and needs
    about eight independent sums to hide the latency of a multiply-add. Loads are not wholly hidden behind these: 1x1
    convolutions with warm caches reach 0.64 of the peak in tiles of 17 x 1, and 0.79 in tiles of 14 x 2. Where no
    multiply-add broadcasts a factor itself (AVX2), a broadcast costs more. Sums that TVM does not keep on the stack,
    lanes LLVM has to widen, and sums it keeps in memory, cost extra.
    """
    sums = tile.rows * tile.vectors
    vector, broadcast = (1.5, 1.0) if _has_few_registers(target) else (2.0, 0.5)
    loads = vector * tile.vectors + broadcast * tile.rows
    time = max(sums, loads, 8) + 0.8 * loads
    if sums * tile.lanes * size > STACK_BYTES:
        time *= 1.5
    if tile.lanes & (tile.lanes - 1):
        time *= 3.0
    return time * _shortage(tile, target) / sums * register / tile.lanes


def _has_few_registers(target: Target) -> bool:
    return target.vector_registers <= 16


def _shortage(tile: Tile, target: Target) -> float:
    """How many times as long a tile takes for which there are not enough registers.

    Of 16 it needs one for each vector of weights that several rows share, and one for the other operand. If it takes
    more, LLVM keeps some sums in memory: 1.9 to 2.5 times the time of a tile of 4 x 2 on a Zen 3. One that needs all
    (4 x 3) took 1.3 times as long there, and 0.9 times on a Cascade Lake. With one vector LLVM loads several steps of
    that in advance, from eight rows on into too many.
    """
    if not _has_few_registers(target) or tile.rows == 1:
        return 1.0
    left = target.vector_registers - (tile.rows + 1) * tile.vectors
    if left <= 0 or (tile.vectors == 1 and tile.rows >= 8):
        return 2.0
    return 1.2 if left == 1 else 1.0


def useful_padding(sch: s_tir.Schedule, block: Any, target: Target) -> list[int]:
    """For each axis of a contraction, the number its extent has to be a multiple of to fill a register tile."""
    spatial, _ = split_by_kind(sch, block)
    padding = [1] * len(sch.get_loops(block))
    if len(spatial) < 2:
        return padding
    rows, columns = (extent_of(sch, loop) for loop in spatial[-2:])
    if columns > 2 and vector_width(columns, target) < min(columns, target.vector_elements, 8):
        padding[len(spatial) - 1] = min(1 << (columns - 1).bit_length(), target.vector_elements)
    if rows > 8 and max(divisors(rows, 14)) < 4:
        padding[len(spatial) - 2] = 8
    return padding
