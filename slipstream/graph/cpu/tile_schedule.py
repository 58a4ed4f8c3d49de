"""Programs for CPUs that multiply tiles (AMX): tiles of sums in tile registers through the whole reduction.

The loops are those of any contraction (`default_schedule.py`), with a product of tiles as innermost step: pieces for
the cores, tiles that share cached data, a few tiles at once. Behind the reduction the tiles are stored and the epilogue
runs on them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tvm
from tvm import s_tir, sym, tirx

from slipstream.graph.cpu.default_schedule import (
    KEEP_LAYOUT,
    MOST_UNROLLED,
    find_contraction,
    find_epilogue,
    inline_cheap_blocks,
    sample_split,
    weight_is_larger_than_data,
)
from slipstream.graph.cpu.spread_loops import spread_blocks
from slipstream.graph.cpu.tile_intrinsics import TileShape, register_shape
from slipstream.graph.schedule_blocks import (
    DATA_PARALLEL,
    REDUCTION,
    divisors,
    elements_of,
    extent_of,
    split_by_kind,
    start_schedule,
)
from slipstream.machine.dot_product import COLUMNS, TILE_ROWS, TileOperation, tile_operation_of
from slipstream.machine.target import Target

# Tiles at once, down and across: their sums are at most 6 of the 8 registers.
_MOST_DOWN, _MOST_ACROSS = 2, 3
# With fewer rows or products a step, vectors of dot products are faster.
_FEWEST_ROWS, _FEWEST_BYTES = 4, 16
# Cycles of a product of tiles are its rows; two rows of a tile are loaded in one.
_ROWS_LOADED = 2


def tile_sketch(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
    """A program that multiplies tiles, as a schedule whose trace a tuner can vary; None where there is none."""
    with contextlib.suppress(s_tir.schedule.ScheduleError, tvm.error.InternalError, ValueError, TypeError):
        sch = start_schedule(func)
        anchor = find_contraction(sch)
        shape = _find_shape(sch, anchor, target) if anchor is not None else None
        if shape is not None:
            register_shape(shape)
            _tile(sch, anchor, shape, target)
            return sch
    return None


def _find_shape(sch: s_tir.Schedule, anchor: Any, target: Target) -> TileShape | None:
    """The tile for a contraction of packed weights: rows along its last axis but the columns."""
    stmt = sch.get(anchor)
    data, weights = (read.source for read in stmt.reads)
    operation = tile_operation_of(target, str(data.dtype))
    if operation is None or str(weights.dtype) != operation.weight_type:
        return None
    if [int(extent) for extent in weights.shape[-2:]] != [COLUMNS, operation.group]:
        return None
    spatial = [i for i in stmt.iter_vars if int(i.iter_type) == DATA_PARALLEL]
    summed = [i for i in stmt.iter_vars if int(i.iter_type) == REDUCTION]
    if len(spatial) < 2 or not summed:
        return None
    return _shape_of(operation, list(stmt.reads[0].region), spatial[-2], summed[-1])


def _shape_of(operation: TileOperation, region: list[Any], row: Any, depth: Any) -> TileShape | None:
    rows = max(divisors(int(row.dom.extent), TILE_ROWS))
    fitting = [d for d in divisors(int(depth.dom.extent), operation.most_depth) if d % operation.group == 0]
    if rows < _FEWEST_ROWS or not fitting:
        return None
    size = tvm.DataType(operation.data_type).itemsize
    if (products := max(fitting)) * size < _FEWEST_BYTES or _step_along(region[-1].min, depth.var) != 1:
        return None
    within = _step_along(region[-1].min, row.var)
    across = _step_along(region[-2].min, row.var) if len(region) > 1 else 0
    if within and not across:
        return TileShape(operation, rows, products, within, within_row=True)
    return TileShape(operation, rows, products, across) if across and within == 0 else None


def _step_along(index: Any, variable: Any) -> int | None:
    """How much an index grows with a variable; None where that is not always the same."""
    found = sym.detect_linear_equation(index, [variable])
    return int(found[0]) if len(found) and isinstance(found[0], tirx.IntImm) else None


def _tile(sch: s_tir.Schedule, anchor: Any, shape: TileShape, target: Target) -> None:
    inline_cheap_blocks(sch)
    epilogue = find_epilogue(sch, anchor)
    elements = elements_of(sch.get(anchor).writes[0].source)
    stored = sch.cache_write(anchor, 0, "global")
    spatial, reductions = split_by_kind(sch, anchor)
    *rows, columns = spatial
    rows[-1], tile_rows = sch.split(rows[-1], [None, shape.rows])
    columns, tile_columns = sch.split(columns, [None, COLUMNS])
    reductions[-1], tile_depth = sch.split(reductions[-1], [None, shape.depth])
    extents = [extent_of(sch, loop) for loop in rows]
    axis, down, across = _tiles_at_once(extents, extent_of(sch, columns), shape)
    pieces, tiles, inner = [], [], []
    for place, loop in enumerate(rows):
        own = [down] if place == axis else []
        (piece, shared, *registers), _ = sample_split(sch, loop, [1, *own], _MOST_DOWN if own else extents[place])
        pieces.append(piece)
        tiles.append(shared)
        inner += registers
    (piece, shared, *registers), _ = sample_split(sch, columns, [1, across], _MOST_ACROSS)
    inner += registers
    pieces = [piece, *pieces] if weight_is_larger_than_data(sch, anchor) else [*pieces, piece]
    tiles.append(shared)
    *reductions, last = reductions
    reductions += sample_split(sch, last, [1], MOST_UNROLLED)[0]
    sch.reorder(*pieces, *tiles, *reductions, *inner, tile_rows, tile_columns, tile_depth)
    cores = sch.fuse(*pieces)
    for block in (stored, *epilogue):
        sch.reverse_compute_at(block, tiles[-1], preserve_unit_loops=True)
    sch.annotate(sch.get_sblock("root"), KEEP_LAYOUT, True)
    sch.parallel(cores)
    for loop in (*inner, reductions[-1]):
        sch.unroll(loop)
    *stored_rows, row, column = sch.get_loops(stored)[1 + len(tiles) :]
    outer_row, row = sch.split(row, [None, shape.rows])
    outer_column, column = sch.split(column, [None, COLUMNS])
    sch.reorder(*stored_rows, outer_row, outer_column, row, column)
    for loop in (*stored_rows, outer_row, outer_column):
        sch.unroll(loop)
    for block in epilogue:
        if elements_of(sch.get(block).writes[0].source) == elements:
            sch.vectorize(sch.get_loops(block)[-1])
    init = sch.decompose_reduction(anchor, reductions[0])
    *init_loops, init_row, _ = sch.get_loops(init)[-len(inner) - 2 :]
    for loop in init_loops:
        sch.unroll(loop)
    spread_blocks(sch, target, skip={sch.get(block).name_hint for block in (anchor, init, stored, *epilogue)})
    sch.tensorize(tile_rows, shape.name)
    sch.tensorize(init_row, shape.clear)
    sch.tensorize(row, shape.store)


def _tiles_at_once(rows: list[int], columns: int, shape: TileShape) -> tuple[int, int, int]:
    """(axis, tiles along it, tiles of columns) with the least time for a product of tiles."""
    weight_rows = shape.depth // shape.operation.group

    def time(choice: tuple[int, int, int]) -> float:
        _, down, across = choice
        loads = (down * shape.rows + across * weight_rows) / _ROWS_LOADED
        return (max(down * across * shape.rows, loads) + 0.1 * loads) / (down * across)

    choices = [
        (axis, down, across)
        for axis in reversed(range(len(rows)))
        for down in divisors(rows[axis], _MOST_DOWN)
        for across in divisors(columns, 2)  # the epilogue writes them as one vector
    ]
    return min(choices, key=time)
