"""Schedules for operators that reduce rows and then use the results on the same rows: softmax, layer norm.

All stages of a row are computed before the next row, in one parallel loop over the rows: a row stays in the nearest
cache, and no core waits for the others between two stages.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir

from slipstream.graph.cpu.spread_loops import reduce_by_lanes, vectorize_lanes, vectorize_registers
from slipstream.graph.schedule_blocks import (
    DATA_PARALLEL,
    REDUCTION,
    blocks,
    divisors,
    elements_of,
    extent_of,
    iter_kinds,
    reads_along,
    split_by_kind,
)
from slipstream.machine.target import Target

# Where stages only reduce: the additions of one row have to wait for each other, those of several do not.
_ROWS_AT_ONCE = 4


def schedule_rows(sch: s_tir.Schedule, target: Target) -> bool:
    """Schedule a function whose stages reduce the rows of its one result; False if it is not of this kind."""
    *stages, result = list(blocks(sch))
    axes = _row_axes(sch, stages, result)
    if axes is None:
        return False
    loops = sch.get_loops(result)[:axes]
    count = math.prod(extent_of(sch, loop) for loop in loops)
    if count < target.threads:
        return False
    most = min(count // target.threads, _ROWS_AT_ONCE if all(_is_small(sch, stage, axes) for stage in stages) else 1)
    split = []
    for stage in stages:
        if REDUCTION in iter_kinds(sch, stage) and (partial := reduce_by_lanes(sch, stage, target)) is not None:
            split.append(partial)
        split.append(stage)
    *outer, last = loops
    at_once = max(divisors(extent_of(sch, last), most))
    rows = sch.fuse(*outer, sch.split(last, [None, at_once])[0])
    for stage in reversed(split):
        sch.compute_at(stage, rows, preserve_unit_loops=True)
        if _elements_inside(sch, stage) * count > elements_of(sch.get(stage).writes[0].source) * at_once:
            return False  # a row needs what belongs to other rows too, which would be computed several times
    sch.parallel(rows)
    for stage in [*split, result]:
        _vectorize(sch, stage, axes, target)
    return True


def _row_axes(sch: s_tir.Schedule, stages: list[Any], result: Any) -> int | None:
    """How many of the first axes of the result number its rows: those that every reduction keeps, and only those."""
    reducing = [stage for stage in stages if REDUCTION in iter_kinds(sch, stage)]
    if not reducing or set(iter_kinds(sch, result)) != {DATA_PARALLEL} or any(not sch.get_consumers(s) for s in stages):
        return None
    extents = [extent_of(sch, loop) for loop in sch.get_loops(result)]
    counts = set()
    for stage in reducing:
        kinds = iter_kinds(sch, stage)
        spatial, _ = split_by_kind(sch, stage)
        kept = [extent_of(sch, loop) for loop in spatial]
        if kinds != sorted(kinds) or kept != extents[: len(kept)] or not kept or reads_along(sch, stage, len(kept) - 1):
            return None
        counts.add(len(kept))
    axes = counts.pop()
    return axes if not counts and axes < len(extents) else None


def _is_small(sch: s_tir.Schedule, stage: Any, axes: int) -> bool:
    """Whether a stage has one result for each row."""
    return iter_kinds(sch, stage).count(DATA_PARALLEL) == axes


def _elements_inside(sch: s_tir.Schedule, stage: Any) -> int:
    """How many results of a stage are computed inside of the loop over the rows."""
    own = zip(sch.get_loops(stage)[1:], iter_kinds(sch, stage), strict=True)
    return math.prod(extent_of(sch, loop) for loop, kind in own if kind == DATA_PARALLEL)


def _vectorize(sch: s_tir.Schedule, stage: Any, axes: int, target: Target) -> None:
    """The last axis over vector lanes; of a reduction, the partial results, if it has one for each lane."""
    kinds = iter_kinds(sch, stage)
    own = sch.get_loops(stage)[1:]
    if REDUCTION not in kinds:
        vectorize_registers(sch, own[-1], target)
        return
    reductions = [loop for loop, kind in zip(own, kinds, strict=True) if kind == REDUCTION]
    lanes, *rows = [loop for loop, kind in zip(own, kinds, strict=True) if kind == DATA_PARALLEL]
    if len(rows) == axes:
        sch.reorder(*rows, *reductions, lanes)
        vectorize_lanes(sch, stage, lanes, reductions[0])
