"""Schedules for the Winograd form of a convolution: its three stages in pieces that stay in the cache.

The product is tiled in three levels like any contraction: pieces for the cores, register tiles that share a piece,
and one register tile's sums. The output transform and the epilogue follow piece by piece. The input is transformed

    by tiles     in each piece, for some tiles and all filters: for weights that fit the cache
    by filters   before all pieces, each of which has some filters: every weight is read once, by one core
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import s_tir

from slipstream.graph.cpu.default_schedule import (
    KEEP_LAYOUT,
    MOST_UNROLLED,
    find_epilogue,
    inline_cheap_blocks,
    sample_split,
    unroll_and_vectorize,
)
from slipstream.graph.cpu.prefetch import NO_PREFETCH
from slipstream.graph.cpu.spread_loops import spread_blocks, vectorize_registers
from slipstream.graph.schedule_blocks import divisors, extent_of
from slipstream.graph.winograd.form import INPUT, OUTPUT, PRODUCT
from slipstream.machine.target import Target

_MOST_VECTORS = 8
# How much transformed input a piece may have: little, if the weights are to stay in a second-level cache (of
# `NEAR_BYTES`) beside it; more, if they come from farther away anyway and should be used for many tiles each time.
NEAR_BYTES = 1 << 20
_SMALL_PIECE, _LARGE_PIECE, _WHOLE_INPUT = 1 << 18, 1 << 20, 1 << 22


def schedule_winograd(sch: s_tir.Schedule, target: Target, *, by_tiles: bool) -> bool:
    """Schedule a function that `winograd_form` made; False if what follows the convolution is not element-wise."""
    sch.annotate(sch.get_sblock("root"), KEEP_LAYOUT, True)
    inline_cheap_blocks(sch)
    product, output = sch.get_sblock(PRODUCT), sch.get_sblock(OUTPUT)
    epilogue = find_epilogue(sch, output)
    if not epilogue:
        return False
    sums = sch.cache_write(product, 0, "global")
    lanes = int(sch.get(product).reads[1].source.shape[-1])
    i, j, *part, batch, down, across, filters, channels = sch.get_loops(product)
    vectors, lane = sch.split(filters, [None, lanes])
    loops = down, across, vectors
    size = tvm.DataType(str(sch.get(product).writes[0].source.dtype)).itemsize
    every_channel = extent_of(sch, channels) * math.prod(extent_of(sch, loop) for loop in part)
    extents = (extent_of(sch, loop) for loop in (i, batch, down, across, vectors))
    sizes = _Sizes(size, lanes, every_channel, *extents)
    cut = _choose_cut(sizes, target, by_tiles)
    (piece_down, shared_down, rows), (piece_across, shared_across, columns), (piece_filters, shared_filters, wide) = (
        sample_split(sch, loop, list(inner), max(inner[-1], most))[0]
        for loop, inner, most in zip(
            loops, cut, (target.vector_registers, target.vector_registers, _MOST_VECTORS), strict=True
        )
    )
    channel, unrolled = sample_split(sch, channels, [1], MOST_UNROLLED)[0]
    pieces, inner = [batch, piece_down, piece_across], [rows, columns, wide, lane]
    shared = [shared_filters, shared_down, shared_across]
    sch.reorder(*pieces, piece_filters, i, j, *part, *shared, channel, unrolled, *inner)
    unroll_and_vectorize(sch, [unrolled, *inner])
    # The vectors of a register tile are separate streams, which the hardware prefetcher follows better.
    sch.annotate(channel, NO_PREFETCH, True)
    sch.reverse_compute_at(sums, shared[-1], preserve_unit_loops=True)
    *sum_rows, sum_filters = sch.get_loops(sums)[-3:]
    unroll_and_vectorize(sch, [*sum_rows, *sch.split(sum_filters, [None, lanes])])
    cores = sch.fuse(*pieces) if by_tiles else sch.fuse(*pieces, piece_filters)
    piece = piece_filters if by_tiles else cores
    sch.parallel(cores)
    for block in (output, *epilogue):
        sch.reverse_compute_at(block, piece, preserve_unit_loops=True)
        vectorize_registers(sch, sch.get_loops(block)[-1], target)
    init = sch.decompose_reduction(product, channel)
    unroll_and_vectorize(sch, sch.get_loops(init)[-len(inner) :])
    done = [product, init, sums, output, *epilogue]
    if by_tiles:
        transform = sch.get_sblock(INPUT)
        sch.compute_at(transform, cores, preserve_unit_loops=True)
        vectorize_registers(sch, sch.get_loops(transform)[-1], target)
        done.append(transform)
    spread_blocks(sch, target, skip={sch.get(block).name_hint for block in done})
    return True


@dataclass(frozen=True)
class _Sizes:
    """The extents of the product; `vectors` are its filters in whole vectors."""

    bytes: int  # of an element
    lanes: int
    channels: int
    square: int
    batch: int
    down: int
    across: int
    vectors: int

    @property
    def weight_bytes(self) -> int:
        return self.square**2 * self.vectors * self.lanes * self.channels * self.bytes

    @property
    def tile_bytes(self) -> int:
        """Those of one transformed input tile."""
        return self.square**2 * self.channels * self.bytes


# (shared, registers) of a loop: how many register tiles a piece has along it, and how much a register tile has.
_Cut = tuple[int, int]


def _choose_cut(sizes: _Sizes, target: Target, by_tiles: bool) -> tuple[_Cut, _Cut, _Cut]:
    """Good tiles down, across and along the filters, without measuring anything."""
    rows, columns, wide = _register_tile(sizes, target)
    shared_filters = sizes.vectors // wide if by_tiles else 1
    pieces = math.ceil(target.threads * wide * shared_filters / (sizes.vectors * sizes.batch))
    near = sizes.weight_bytes <= NEAR_BYTES
    input_bytes = (_SMALL_PIECE if near else _LARGE_PIECE) if by_tiles else _WHOLE_INPUT
    most = input_bytes // (sizes.tile_bytes * rows * columns)
    shared_across = _share(sizes.across // columns, most, math.ceil(pieces * rows / sizes.down))
    shared_down = _share(sizes.down // rows, most // shared_across, pieces)
    return (shared_down, rows), (shared_across, columns), (shared_filters, wide)


def _register_tile(sizes: _Sizes, target: Target) -> tuple[int, int, int]:
    """Rows and columns of tiles, and vectors of filters, whose sums fit the registers with the fewest loads each.

    The filters' weights are in registers too, and the tiles' values one by one, but with AVX-512, where a multiply-add
    reads and broadcasts one factor from memory. Sums that do not fit are twice as slow (docs/winograd.md). Weights come
    from a farther cache, which shows where tiles are small: one of eight vectors and a single value is slow then.
    """
    most = target.vector_registers - 4
    others = 0 if "avx512f" in target.features else 1
    weight = 1 if target.vector_registers > 16 else 2
    candidates = (
        (rows, columns, wide)
        for wide in divisors(sizes.vectors, min(most, _MOST_VECTORS))
        for columns in reversed(divisors(sizes.across, most // wide))
        for rows in divisors(sizes.down, most // (wide * columns))
        if rows * columns * wide + others * (wide + 1) <= target.vector_registers
    )

    def time_per_sum(tile: tuple[int, int, int]) -> float:
        rows, columns, wide = tile
        sums, loads = rows * columns * wide, rows * columns + weight * wide
        return (max(sums, 8) + loads / 2) / sums

    return min(candidates, key=time_per_sum)


def _share(count: int, most: int, pieces: int = 1) -> int:
    """How many of `count` register tiles to put into a piece: at most so many, and so that there are `pieces`."""
    fitting = [d for d in divisors(count, max(1, most)) if count // d >= min(pieces, count)]
    return max(fitting)
