"""Schedules for operators other than contractions: rows over the cores, the last axis over vector lanes."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from tvm import s_tir

from slipstream.graph.schedule_blocks import (
    DATA_PARALLEL,
    PREPROC,
    REDUCTION,
    blocks,
    divisors,
    elements_of,
    extent_of,
    is_minor,
    iter_kinds,
    reads_along,
    split_by_kind,
    transposed_axis,
    vector_width,
)
from slipstream.machine.target import Target

_LONGEST_PIECE = 1024
_CACHE_LINE = 16  # float32 elements
_PIECES_PER_CORE = 16
# The window of a pooling that is written out, so that its result stays in a register.
_LARGEST_WINDOW = 25


def spread_blocks(sch: s_tir.Schedule, target: Target, skip: set[str]) -> None:
    """Spread each block over cores and lanes; an element-wise block is computed inside its consumer's loop, or inside
    that of the reduction it follows."""
    followers = _followers(sch, skip)
    skip = skip | {sch.get(block).name_hint for block in followers.values()}
    for block in reversed(list(blocks(sch))):
        stmt = sch.get(block)
        if stmt.name_hint in skip or PREPROC in stmt.annotations:
            continue
        rows = None
        with contextlib.suppress(s_tir.schedule.ScheduleError):
            if not _compute_in_consumer(sch, block, target, skip):
                rows = _spread(sch, block, target)
        if (follower := followers.get(stmt.name_hint)) is not None:
            with contextlib.suppress(s_tir.schedule.ScheduleError):
                _place_follower(sch, follower, rows, target)


def _followers(sch: s_tir.Schedule, skip: set[str]) -> dict[str, Any]:
    """Name of a reduction -> the element-wise block that alone reads its results, and nothing else that is computed:
    the division of a mean."""
    found = {}
    for block in blocks(sch):
        consumers = sch.get_consumers(block)
        if len(consumers) != 1 or len(sch.get_producers(consumers[0])) != 1 or REDUCTION not in iter_kinds(sch, block):
            continue
        names = {sch.get(one).name_hint for one in (block, consumers[0])}
        same_size = elements_of(sch.get(block).writes[0].source) == elements_of(sch.get(consumers[0]).writes[0].source)
        if same_size and set(iter_kinds(sch, consumers[0])) == {DATA_PARALLEL} and not names & skip:
            found[sch.get(block).name_hint] = consumers[0]
    return found


def _place_follower(sch: s_tir.Schedule, follower: Any, rows: Any | None, target: Target) -> None:
    if rows is None:
        _spread(sch, follower, target)
        return
    sch.reverse_compute_at(follower, rows, preserve_unit_loops=True)
    vectorize_registers(sch, sch.get_loops(follower)[-1], target)


def _compute_in_consumer(sch: s_tir.Schedule, block: Any, target: Target, skip: set[str]) -> bool:
    """Compute an element-wise block inside its consumer's parallel loop instead of in a pass of its own."""
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or sch.get(consumers[0]).name_hint in skip:
        return False
    if any(REDUCTION in iter_kinds(sch, b) for b in (block, consumers[0])):
        return False
    if elements_of(sch.get(block).writes[0].source) != elements_of(sch.get(consumers[0]).writes[0].source):
        return False
    around = sch.get_loops(consumers[0])[:-1] or sch.get_loops(consumers[0])
    if not around:  # a scalar
        return False
    sch.compute_at(block, around[-1])
    own = sch.get_loops(block)[len(around) :]
    if own:
        vectorize_registers(sch, own[-1], target)
    return True


def _spread(sch: s_tir.Schedule, block: Any, target: Target) -> Any | None:
    """Outer data-parallel loops over the cores, the last one over vector lanes, reductions in between.

    Returns the loop over the cores, if there is one.
    """
    kinds = iter_kinds(sch, block)
    if len(sch.get_loops(block)) != len(kinds) or set(kinds) - {DATA_PARALLEL, REDUCTION}:
        return None
    spatial, reductions = split_by_kind(sch, block)
    if not spatial:
        return None
    last_spatial = len(kinds) - 1 - kinds[::-1].index(DATA_PARALLEL)
    if reductions and not reads_along(sch, block, last_spatial):
        return _spread_row_reduction(sch, block, target)
    *outer, last = spatial
    last_outer, last_inner = sch.split(last, [None, _inner_extent(extent_of(sch, last), target)])
    rows = []
    if not reductions and (axis := transposed_axis(sch, block)) is not None:
        # Square tiles: every cache line is fully used before it is evicted.
        outer[axis], row = sch.split(outer[axis], [None, max(divisors(extent_of(sch, outer[axis]), _CACHE_LINE))])
        rows = [row]
    sch.reorder(*outer, last_outer, *reductions, *rows, last_inner)
    cores = _parallelize(sch, block, [*outer, last_outer], target)
    vectorize_registers(sch, last_inner, target)
    if reductions:
        if math.prod(extent_of(sch, loop) for loop in reductions) <= _LARGEST_WINDOW:
            for loop in reductions:
                sch.unroll(loop)
        init = sch.decompose_reduction(block, reductions[0])
        vectorize_registers(sch, sch.get_loops(init)[-1], target)
    return cores


def _spread_row_reduction(sch: s_tir.Schedule, block: Any, target: Target) -> Any:
    """Rows over the cores; along a row one partial result per vector lane, which are then reduced themselves.

    Returns the loop over the rows.
    """
    spatial, reductions = split_by_kind(sch, block)
    sch.reorder(*spatial, *reductions)
    with contextlib.suppress(s_tir.schedule.ScheduleError):
        if (partial := reduce_by_lanes(sch, block, target)) is not None:
            rows, first, *_, lanes = _fuse_first(sch, sch.get_loops(partial), len(spatial))
            sch.reverse_compute_at(block, rows)
            sch.parallel(rows)
            vectorize_lanes(sch, partial, lanes, first)
            return rows
    rows, *_ = _fuse_first(sch, sch.get_loops(block), len(spatial))
    sch.parallel(rows)
    return rows


def reduce_by_lanes(sch: s_tir.Schedule, block: Any, target: Target) -> Any | None:
    """A new block with one partial result for each vector lane, which `block` then reduces; None for short rows."""
    spatial, reductions = split_by_kind(sch, block)
    width = vector_width(extent_of(sch, reductions[-1]), target)
    if not extent_of(sch, reductions[-1]) >= 2 * width > 2:
        return None
    return sch.rfactor(sch.split(reductions[-1], [None, width])[1], len(spatial))


def vectorize_lanes(sch: s_tir.Schedule, partial: Any, lanes: Any, first_reduction: Any) -> None:
    """Compute the partial results of a row side by side, from their initial values on."""
    sch.vectorize(lanes)
    init = sch.decompose_reduction(partial, first_reduction)
    sch.vectorize(sch.get_loops(init)[-1])


def _fuse_first(sch: s_tir.Schedule, loops: list[Any], count: int) -> list[Any]:
    return [sch.fuse(*loops[:count]), *loops[count:]]


def _parallelize(sch: s_tir.Schedule, block: Any, loops: list[Any], target: Target) -> Any:
    """Parallelise as many outermost loops as give every core enough iterations, as one; the others stay loops."""
    enough = _PIECES_PER_CORE * target.threads
    extents = [extent_of(sch, loop) for loop in loops]
    count = next((n for n in range(1, len(loops)) if math.prod(extents[:n]) >= enough), len(loops))
    cores = sch.fuse(*loops[:count])
    if not is_minor(sch, block, target):
        sch.parallel(cores)
    return cores


def vectorize_registers(sch: s_tir.Schedule, loop: Any, target: Target) -> None:
    """Vectorise by whole registers; a loop without a whole register is left to LLVM, which handles remainders."""
    width = vector_width(extent_of(sch, loop), target)
    if width > 1:
        sch.vectorize(sch.split(loop, [None, width])[1])


def _inner_extent(extent: int, target: Target) -> int:
    """How much of a row to give to one iteration of a parallel loop."""
    if (width := vector_width(extent, target)) > 1:
        return width
    piece = max(divisors(extent, _LONGEST_PIECE))
    return piece if piece >= target.vector_elements else extent
