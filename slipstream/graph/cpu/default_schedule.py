"""The default CPU program of an operator, before any tuning: parallel, vectorised and register-tiled.

Contractions (convolutions, matmuls) are cut into a tile of accumulators that fits the vector registers and
run through the whole reduction before the epilogue; everything else is distributed over the cores and
vectorised along its last axis. Nothing is sampled or measured: the same operator always gets the same program.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from slipstream.graph.cpu.depthwise import find_border, share_rows
from slipstream.graph.cpu.dot_product import find_dot_product, intrinsic
from slipstream.graph.cpu.register_tile import choose_tile, useful_padding
from slipstream.graph.cpu.spread_loops import spread_blocks, vectorize_registers
from slipstream.graph.cpu.whole_rows import schedule_rows
from slipstream.graph.describe.blocks import adds_partial_sums
from slipstream.graph.gpu.default_schedule import schedule_on_gpu
from slipstream.graph.schedule_blocks import (
    DATA_PARALLEL,
    PREPROC,
    REDUCTION,
    blocks,
    count_loads,
    elements_of,
    extent_of,
    is_minor,
    is_plain_copy,
    iter_kinds,
    iterations,
    pads_rows,
    split_by_kind,
    start_schedule,
)
from slipstream.machine.target import Target

_MOST_INLINED_LOADS = 8
# What follows a padded contraction has fewer elements, but not by more than this factor.
_MOST_CUT_OFF = 8
MOST_UNROLLED = 16
# Vectors of 8-bit dot products beside each other: each has a register for its weights of every step.
_MOST_VECTORS = 4
# Marks a program whose weights are laid out by the program itself.
KEEP_LAYOUT = "slipstream.keep_layout"


def schedule_default(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """A scheduled form of `func` that computes the same; `func` itself if it cannot be scheduled."""
    if target.gpu is not None:
        return schedule_on_gpu(func, target)
    sch = default_sketch(func, target)
    if sch is None:
        return func
    if may_rewrite_layout(sch):
        # TVM gives up on a program whose blocks do not say what they read, such as the steps of a recurrent layer.
        with contextlib.suppress(s_tir.schedule.ScheduleError, tvm.error.InternalError):
            rewrite_weight_layout(rewritten := sch.copy())
            sch = rewritten
    scheduled = sch.mod["main"].without_attr("global_symbol")
    if func.attrs and "global_symbol" in func.attrs:
        scheduled = scheduled.with_attr("global_symbol", func.attrs["global_symbol"])
    return scheduled


def default_sketch(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """The default program as a schedule whose trace a tuner can vary: its tiles are sampling instructions.

    The order in which weights are stored follows from the tiles, so it is set after they are decided. There is
    none for a GPU: its default programs have nothing to sample.
    """
    if target.gpu is not None:
        return None
    for strategy in (_schedule_padded_contraction, _schedule_contraction, _schedule_rows, _schedule_loops):
        try:
            sch = start_schedule(func)
            if strategy(sch, target):
                return sch
        except (s_tir.schedule.ScheduleError, tvm.error.InternalError, ValueError, TypeError):
            continue  # TypeError: an extent that is only known at run time
    return None


def _schedule_padded_contraction(sch: s_tir.Schedule, target: Target) -> bool:
    """A matmul whose rows or columns fill no register tile (197 tokens, 97 classes): pad, tile, cut off."""
    anchor = find_contraction(sch)
    padding = useful_padding(sch, anchor, target) if anchor is not None else []
    if all(multiple == 1 for multiple in padding) or find_total(sch, anchor) is not None:
        return False
    sch.pad_einsum(anchor, padding)
    weights = _weights(sch)
    for block in sch.get_producers(anchor):
        if any(read.source.same_as(weight) for read in sch.get(block).reads for weight in weights):
            sch.annotate(block, PREPROC, True)
    sch.annotate(sch.get_sblock("root"), KEEP_LAYOUT, True)
    _tile_contraction(sch, anchor, target)
    return True


def _schedule_contraction(sch: s_tir.Schedule, target: Target) -> bool:
    """Register-tile the heaviest contraction."""
    anchor = find_contraction(sch)
    if anchor is None:
        return False
    _tile_contraction(sch, anchor, target)
    return True


def _tile_contraction(sch: s_tir.Schedule, anchor: Any, target: Target) -> None:
    """Tile the block `anchor`, run its epilogue per tile, then spread the remaining blocks.

    Three levels: pieces for the cores, tiles that share cached data, and one tile's sums in registers through the
    whole reduction. The middle level has one tile by default and is for the tuner. A piece of a depthwise
    convolution has some rows of the image and their border, so that these stay in the cache. Where partial sums are
    added up by a block of their own, its loops are cut instead, and a tile's partial sums are computed inside them.
    """
    inline_cheap_blocks(sch)
    total = find_total(sch, anchor)
    whole = anchor if total is None else total
    epilogue = find_epilogue(sch, whole) or [sch.cache_write(whole, 0, "global")]
    filters = int(sch.get(whole).writes[0].source.shape[-1])
    dot = find_dot_product(sch, anchor, target)
    tile = choose_tile(sch, anchor, target, dot)
    own_spatial, _ = split_by_kind(sch, anchor)
    spatial, reductions = split_by_kind(sch, whole)
    row_axis = None if tile.row_axis is None else tile.row_axis - (len(own_spatial) - len(spatial))
    *rows, columns = spatial
    border = find_border(sch, anchor)
    shares = share_rows(sch, anchor, tile, target) if border is not None else [1] * len(rows)
    pieces, tiles, inner = [], [], []
    for axis, loop in enumerate(rows):
        own = [tile.rows] if axis == row_axis else []
        (piece, shared, *registers), _ = sample_split(sch, loop, [shares[axis], *own], target.vector_registers)
        pieces.append(piece)
        tiles.append(shared)
        inner += registers
    instruction: list[Any] = []
    if dot is None:
        (piece, shared, *registers), factors = sample_split(
            sch, columns, [1, tile.vectors, tile.lanes], target.vector_elements
        )
        at_once = factors[-1]
    else:
        columns, lanes = sch.split(columns, [None, tile.lanes])
        reductions[-1], products = sch.split(reductions[-1], [None, dot[1]])
        instruction = [lanes, products]
        (piece, shared, *registers), factors = sample_split(sch, columns, [1, tile.vectors], _MOST_VECTORS)
        at_once = None
        sch.annotate(sch.get_sblock("root"), KEEP_LAYOUT, True)
    inner += registers
    # The larger operand is walked by the outer loops, so that the smaller one stays in cache.
    pieces = [piece, *pieces] if weight_is_larger_than_data(sch, anchor) else [*pieces, piece]
    tiles.append(shared)
    if total is None:
        *reductions, last = reductions
        reductions += sample_split(sch, last, [1], MOST_UNROLLED)[0]
    sch.reorder(*pieces, *tiles, *reductions, *inner, *instruction)
    cores = sch.fuse(*pieces)
    for block in epilogue:
        sch.reverse_compute_at(block, tiles[-1], preserve_unit_loops=True)
    done = [whole, *epilogue]
    if not is_minor(sch, whole, target):
        sch.parallel(cores)
    parts = _Parts([], [])
    if total is not None:
        parts = _tile_partial_sums(sch, anchor, reductions[-1], at_once, first=1 + len(tiles) + len(reductions))
        done.append(anchor)
    if border is not None:
        sch.compute_at(border, cores, preserve_unit_loops=True)
        vectorize_registers(sch, sch.get_loops(border)[-1], target)
        done.append(border)
    if dot is None:
        unroll_and_vectorize(sch, inner)
    else:
        for loop in inner:
            sch.unroll(loop)
    if total is None:
        sch.unroll(reductions[-1])
    for block in epilogue:
        *block_rows, block_columns = sch.get_loops(block)[1 + len(tiles) :]
        written = int(sch.get(block).writes[0].source.shape[-1])
        if written == filters:
            vectors = [block_columns] if at_once is None else sch.split(block_columns, [None, at_once])
        elif written == extent_of(sch, block_columns) and at_once is not None:
            # Left alone, LLVM may gather and scatter elements of several rows.
            vectors = sch.split(block_columns, [None, math.gcd(written, target.vector_elements)])
        else:
            continue  # the last vector is cut off: TVM would guard each element of it, LLVM masks the vector
        unroll_and_vectorize(sch, [*block_rows, *vectors])
    if total is not None:
        done.append(part_init := sch.decompose_reduction(anchor, parts.reductions[0]))
        unroll_and_vectorize(sch, sch.get_loops(part_init)[-len(parts.tile) :])
    init = sch.decompose_reduction(whole, reductions[0])
    unroll_and_vectorize(sch, sch.get_loops(init)[-len(inner) - len(instruction[:1]) :])
    spread_blocks(sch, target, skip={sch.get(block).name_hint for block in (init, *done)})
    if dot is not None:
        sch.tensorize(instruction[0], intrinsic(*dot))


@dataclass(frozen=True)
class _Parts:
    """The loops of the partial sums of a tile: through the reduction, and over the tile."""

    reductions: list[Any]
    tile: list[Any]


def _tile_partial_sums(sch: s_tir.Schedule, anchor: Any, around: Any, at_once: Any, first: int) -> _Parts:
    """Compute the partial sums of one tile, in registers, inside the loop `around`, which adds them up and is number
    `first`."""
    sch.compute_at(anchor, around, preserve_unit_loops=True)
    own = list(zip(sch.get_loops(anchor)[first:], iter_kinds(sch, anchor), strict=True))
    *rows, columns = [loop for loop, kind in own if kind == DATA_PARALLEL]
    *reductions, last = [loop for loop, kind in own if kind == REDUCTION]
    tile = [*rows, *sch.split(columns, [None, at_once])]
    reductions += sample_split(sch, last, [1], MOST_UNROLLED)[0]
    sch.reorder(*reductions, *tile)
    unroll_and_vectorize(sch, tile)
    sch.unroll(reductions[-1])
    return _Parts(reductions, tile)


def _schedule_rows(sch: s_tir.Schedule, target: Target) -> bool:
    """Reductions of rows and what is done with them: all stages row by row."""
    if not any(REDUCTION in iter_kinds(sch, block) for block in blocks(sch)):
        return False
    inline_cheap_blocks(sch)
    return schedule_rows(sch, target)


def _schedule_loops(sch: s_tir.Schedule, target: Target) -> bool:
    """No contraction to tile: inline cheap blocks, spread every other one."""
    inline_cheap_blocks(sch)
    spread_blocks(sch, target, skip=set())
    return True


def find_contraction(sch: s_tir.Schedule) -> Any | None:
    """The block that multiplies two tensors and sums up, with the most iterations; None if there is none."""

    candidates = [block for block in blocks(sch) if _is_contraction(sch, block)]
    return max(candidates, key=lambda block: iterations(sch, block), default=None)


def _weights(sch: s_tir.Schedule) -> list[Any]:
    """The function's constant operands."""
    func = sch.mod["main"]
    free = func.attrs.get("layout_free_buffers", []) if func.attrs else []
    return [func.params[int(index)] for index in free]


def _is_contraction(sch: s_tir.Schedule, block: Any) -> bool:
    stmt = sch.get(block)
    kinds = iter_kinds(sch, block)
    return (
        REDUCTION in kinds
        and DATA_PARALLEL in kinds
        and len(stmt.reads) == 2
        and len(stmt.writes) == 1
        and count_loads(sch, block) == 3  # both operands and the sum so far
        and len(sch.get_loops(block)) == len(kinds)
    )


def inline_cheap_blocks(sch: s_tir.Schedule) -> None:
    """Inline element-wise blocks into their one consumer, unless that would repeat their work.

    Padding before a contraction stays: a branch in the hot loop costs more than a pass over the data. A pooling reads
    each element a few times and whole vectors of it, so there it is the other way round.
    """
    for block in blocks(sch):
        consumers = sch.get_consumers(block)
        if len(consumers) != 1 or REDUCTION in iter_kinds(sch, block):
            continue
        if REDUCTION in iter_kinds(sch, consumers[0]) and not _may_join_reduction(sch, block, consumers[0]):
            continue
        copies = count_loads(sch, consumers[0], of=sch.get(block).writes[0].source)
        if copies * count_loads(sch, block) > _MOST_INLINED_LOADS:
            continue
        with contextlib.suppress(s_tir.schedule.ScheduleError):
            sch.compute_inline(block)


def _may_join_reduction(sch: s_tir.Schedule, block: Any, reduction: Any) -> bool:
    return is_plain_copy(sch, block) or (pads_rows(sch, block) and not _is_contraction(sch, reduction))


def find_total(sch: s_tir.Schedule, anchor: Any) -> Any | None:
    """The block that only adds up the partial sums of `anchor` (see `half_sums`); None if there is none."""
    consumers = sch.get_consumers(anchor)
    if len(consumers) != 1 or REDUCTION not in iter_kinds(sch, consumers[0]):
        return None
    return consumers[0] if adds_partial_sums(sch.get(consumers[0]), sch.get(anchor)) else None


def find_epilogue(sch: s_tir.Schedule, anchor: Any) -> list[Any]:
    """The element-wise blocks that follow `anchor` or cut its padding off, in order; none if others follow too."""
    behind: list[Any] = []
    names = {sch.get(anchor).name_hint}
    for block in blocks(sch):
        if names & {sch.get(producer).name_hint for producer in sch.get_producers(block)}:
            behind.append(block)
            names.add(sch.get(block).name_hint)
    most = elements_of(sch.get(anchor).writes[0].source)
    least = most // _MOST_CUT_OFF
    element_wise = all(
        REDUCTION not in iter_kinds(sch, block) and least <= elements_of(sch.get(block).writes[0].source) <= most
        for block in behind
    )
    return behind if element_wise else []


def weight_is_larger_than_data(sch: s_tir.Schedule, block: Any) -> bool:
    data, weight = (elements_of(region.source) for region in sch.get(block).reads)
    return weight > data


def rewrite_weight_layout(sch: s_tir.Schedule) -> None:
    """Let constant weights be stored in the order the tile reads them."""
    from tvm.s_tir.meta_schedule.postproc import RewriteLayout

    RewriteLayout().apply(sch)


def may_rewrite_layout(sch: s_tir.Schedule) -> bool:
    """Whether the order of constant weights is still open."""
    return KEEP_LAYOUT not in sch.get(sch.get_sblock("root")).annotations


def sample_split(sch: s_tir.Schedule, loop: Any, inner: list[int], most_innermost: int) -> tuple[list[Any], list[Any]]:
    """Split a loop into tiles of `inner`, outermost first, in a way that can be sampled: (loops, factors)."""
    outermost = extent_of(sch, loop) // math.prod(inner)
    limit = max(most_innermost, inner[-1])
    factors = sch.sample_perfect_tile(loop, len(inner) + 1, limit, decision=[outermost, *inner])
    return sch.split(loop, factors), factors


def unroll_and_vectorize(sch: s_tir.Schedule, loops: list[Any]) -> None:
    for loop in loops[:-1]:
        sch.unroll(loop)
    sch.vectorize(loops[-1])
