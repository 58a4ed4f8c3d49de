"""The program an operator gets before anybody tunes it: parallel, vectorised and register-tiled.

Contractions (convolutions, matmuls) are cut into a tile of accumulators that fits the vector registers and
run through the whole reduction before the epilogue touches them; everything else is spread over the cores
and vectorised along its last axis. No sampling, no measuring: the same operator always gets the same program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx.analysis import undefined_vars

from slipstream.target import Target

_DATA_PARALLEL, _REDUCTION = 0, 2

# TVM keeps a smaller buffer on the stack, where LLVM can turn it into registers.
_STACK_BYTES = 1024
_MOST_INLINED_LOADS = 8


@dataclass(frozen=True)
class _Tile:
    """`rows` x (`vectors` x `lanes`) accumulators; rows along data-parallel axis number `row_axis`."""

    row_axis: int | None
    rows: int
    vectors: int
    lanes: int


def schedule_default(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """A scheduled form of `func` that computes the same; `func` itself if nothing could be done to it."""
    for strategy in (_schedule_contraction, _schedule_loops):
        sch = s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
        try:
            if not strategy(sch, target):
                continue
        except (s_tir.schedule.ScheduleError, tvm.error.InternalError, ValueError):
            continue
        scheduled = sch.mod["main"].without_attr("global_symbol")
        if func.attrs and "global_symbol" in func.attrs:
            scheduled = scheduled.with_attr("global_symbol", func.attrs["global_symbol"])
        return scheduled
    return func


def _schedule_contraction(sch: s_tir.Schedule, target: Target) -> bool:
    """Register-tile the heaviest contraction, run its epilogue per tile, then spread what is left."""
    anchor = _find_contraction(sch)
    if anchor is None:
        return False
    _inline_cheap_blocks(sch)
    epilogue = _epilogue(sch, anchor) or [sch.cache_write(anchor, 0, "global")]
    tile = _choose_tile(sch, anchor, target)
    spatial, reductions = _split_by_kind(sch, anchor)
    *outer, columns = spatial
    columns_outer, columns_unrolled, lanes = sch.split(columns, [None, tile.vectors, tile.lanes])
    inner = [columns_unrolled, lanes]
    if tile.row_axis is not None:
        outer[tile.row_axis], rows = sch.split(outer[tile.row_axis], [None, tile.rows])
        inner.insert(0, rows)
    # The larger operand is walked by the outer loops, so that the smaller one stays in cache.
    outer = [columns_outer, *outer] if _weight_is_larger_than_data(sch, anchor) else [*outer, columns_outer]
    sch.reorder(*outer, *reductions, *inner)
    tiles = sch.fuse(*outer)
    for block in epilogue:
        sch.reverse_compute_at(block, tiles)
    sch.parallel(tiles)
    _unroll_and_vectorize(sch, inner)
    _rewrite_weight_layout(sch)

    for block in epilogue:
        _, *block_rows, block_columns = sch.get_loops(block)
        _unroll_and_vectorize(sch, [*block_rows, *sch.split(block_columns, [None, tile.lanes])])
    init = sch.decompose_reduction(anchor, reductions[0])
    _unroll_and_vectorize(sch, sch.get_loops(init)[-len(inner) :])
    _spread_blocks(sch, target, skip={sch.get(block).name_hint for block in (anchor, init, *epilogue)})
    return True


def _schedule_loops(sch: s_tir.Schedule, target: Target) -> bool:
    """No contraction to tile: inline what is cheap, spread every remaining block."""
    _inline_cheap_blocks(sch)
    _spread_blocks(sch, target, skip=set())
    return True


def _spread_blocks(sch: s_tir.Schedule, target: Target, skip: set[str]) -> None:
    """Spread each block over cores and lanes; one that only feeds the next element by element rides with it."""
    for block in reversed(list(_blocks(sch))):
        stmt = sch.get(block)
        if stmt.name_hint in skip or "meta_schedule.layout_rewrite_preproc" in stmt.annotations:
            continue
        with contextlib.suppress(s_tir.schedule.ScheduleError):
            if not _ride_with_consumer(sch, block, skip):
                _spread(sch, block, target)


def _ride_with_consumer(sch: s_tir.Schedule, block: Any, skip: set[str]) -> bool:
    """Compute an element-wise block inside its consumer's parallel loop instead of in a pass of its own."""
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or sch.get(consumers[0]).name_hint in skip:
        return False
    if any(_REDUCTION in _iter_kinds(sch, b) for b in (block, consumers[0])):
        return False
    if _elements(sch.get(block).writes[0].source) != _elements(sch.get(consumers[0]).writes[0].source):
        return False
    sch.compute_at(block, sch.get_loops(consumers[0])[0])
    sch.vectorize(sch.get_loops(block)[-1])
    return True


def _spread(sch: s_tir.Schedule, block: Any, target: Target) -> None:
    """Outer data-parallel loops over the cores, the last one over vector lanes, reductions in between."""
    kinds = _iter_kinds(sch, block)
    if len(sch.get_loops(block)) != len(kinds) or set(kinds) - {_DATA_PARALLEL, _REDUCTION}:
        return
    spatial, reductions = _split_by_kind(sch, block)
    if not spatial:
        return
    last_spatial = len(kinds) - 1 - kinds[::-1].index(_DATA_PARALLEL)
    if reductions and not _reads_along(sch, block, last_spatial):
        sch.reorder(*spatial, *reductions)
        sch.parallel(sch.fuse(*spatial))
        return
    *outer, last = spatial
    last_outer, last_inner = sch.split(last, [None, _vector_width(_extent(sch, last), target)])
    sch.reorder(*outer, last_outer, *reductions, last_inner)
    sch.parallel(sch.fuse(*outer, last_outer))
    sch.vectorize(last_inner)
    if reductions:
        init = sch.decompose_reduction(block, reductions[0])
        sch.vectorize(sch.get_loops(init)[-1])


def _find_contraction(sch: s_tir.Schedule) -> Any | None:
    """The block that multiplies two tensors and sums up, with the most iterations; None if there is none."""

    def iterations(block: Any) -> int:
        total = 1
        for loop in sch.get_loops(block):
            total *= _extent(sch, loop)
        return total

    candidates = [block for block in _blocks(sch) if _is_contraction(sch, block)]
    return max(candidates, key=iterations, default=None)


def _is_contraction(sch: s_tir.Schedule, block: Any) -> bool:
    stmt = sch.get(block)
    kinds = _iter_kinds(sch, block)
    return (
        _REDUCTION in kinds
        and _DATA_PARALLEL in kinds
        and len(stmt.reads) == 2
        and len(stmt.writes) == 1
        and len(sch.get_loops(block)) == len(kinds)
    )


def _inline_cheap_blocks(sch: s_tir.Schedule) -> None:
    """Inline element-wise blocks into their one consumer, unless that would repeat their work.

    Padding before a reduction stays: a branch in the hot loop costs more than a pass over the data.
    """
    for block in _blocks(sch):
        consumers = sch.get_consumers(block)
        if len(consumers) != 1 or _REDUCTION in _iter_kinds(sch, block):
            continue
        if _REDUCTION in _iter_kinds(sch, consumers[0]) and not _is_plain_copy(sch, block):
            continue
        copies = _count_loads(sch, consumers[0], of=sch.get(block).writes[0].source)
        if copies * _count_loads(sch, block) > _MOST_INLINED_LOADS:
            continue
        with contextlib.suppress(s_tir.schedule.ScheduleError):
            sch.compute_inline(block)


def _epilogue(sch: s_tir.Schedule, anchor: Any) -> list[Any]:
    """The element-wise blocks that follow `anchor`, in order; none if something else follows too."""
    behind: list[Any] = []
    names = {sch.get(anchor).name_hint}
    for block in _blocks(sch):
        if names & {sch.get(producer).name_hint for producer in sch.get_producers(block)}:
            behind.append(block)
            names.add(sch.get(block).name_hint)
    elements = _elements(sch.get(anchor).writes[0].source)
    element_wise = all(
        _REDUCTION not in _iter_kinds(sch, block) and _elements(sch.get(block).writes[0].source) == elements
        for block in behind
    )
    return behind if element_wise else []


def _choose_tile(sch: s_tir.Schedule, block: Any, target: Target) -> _Tile:
    """The tile with the least estimated time per multiply-add."""
    spatial, _ = _split_by_kind(sch, block)
    *outer, columns = (_extent(sch, loop) for loop in spatial)
    candidates = (
        _Tile(axis, rows, vectors, lanes)
        for lanes in _divisors(columns, target.vector_lanes)
        for vectors in _divisors(columns // lanes, target.vector_registers - 4)
        for axis, extent in [*reversed(list(enumerate(outer))), (None, 1)]
        for rows in _divisors(extent, (target.vector_registers - 4) // vectors)
    )
    return min(candidates, key=lambda tile: _time_per_multiply_add(tile, target))


def _time_per_multiply_add(tile: _Tile, target: Target) -> float:
    """A register model: what a step of the reduction issues, over what it computes. 1.0 is the peak.

    Each step loads `vectors` operands that stream from a farther cache, broadcasts `rows` near ones, and needs
    about eight independent sums to hide the latency of a multiply-add. Sums that TVM does not keep on the
    stack, or lanes LLVM has to widen, cost extra.
    """
    sums = tile.rows * tile.vectors
    loads = 2.0 * tile.vectors + 0.5 * tile.rows
    time = max(sums, loads, 8) + 0.1 * loads
    if sums * tile.lanes * 4 >= _STACK_BYTES:
        time *= 1.5
    if tile.lanes & (tile.lanes - 1):
        time *= 3.0
    return time / sums * target.vector_lanes / tile.lanes


def _weight_is_larger_than_data(sch: s_tir.Schedule, block: Any) -> bool:
    data, weight = (_elements(region.source) for region in sch.get(block).reads)
    return weight > data


def _rewrite_weight_layout(sch: s_tir.Schedule) -> None:
    """Let constant weights be stored in the order the tile reads them."""
    from tvm.s_tir.meta_schedule.postproc import RewriteLayout

    RewriteLayout().apply(sch)


def _vector_width(extent: int, target: Target) -> int:
    """How many neighbours to compute at once: a power of two if `extent` has one worth taking."""
    widths = _divisors(extent, target.vector_lanes)
    powers = [width for width in widths if width & (width - 1) == 0]
    return max(powers) if max(powers) > 2 else max(widths)


def _divisors(number: int, limit: int) -> list[int]:
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


def _split_by_kind(sch: s_tir.Schedule, block: Any) -> tuple[list[Any], list[Any]]:
    """(data-parallel loops, reduction loops) around a block."""
    loops, kinds = sch.get_loops(block), _iter_kinds(sch, block)
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _DATA_PARALLEL]
    reductions = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCTION]
    return spatial, reductions


def _unroll_and_vectorize(sch: s_tir.Schedule, loops: list[Any]) -> None:
    for loop in loops[:-1]:
        sch.unroll(loop)
    sch.vectorize(loops[-1])


def _extent(sch: s_tir.Schedule, loop: Any) -> int:
    return int(sch.get(loop).extent)


def _elements(buffer: Any) -> int:
    total = 1
    for extent in buffer.shape:
        total *= int(extent)
    return total


def _iter_kinds(sch: s_tir.Schedule, block: Any) -> list[int]:
    return [int(iter_var.iter_type) for iter_var in sch.get(block).iter_vars]


def _reads_along(sch: s_tir.Schedule, block: Any, axis: int) -> bool:
    """Whether iteration variable `axis` walks the last, contiguous index of the first tensor read."""
    stmt = sch.get(block)
    if not stmt.reads or not stmt.reads[0].region:
        return False
    variable = stmt.iter_vars[axis].var
    index = stmt.reads[0].region[-1].min
    return any(used.same_as(variable) for used in undefined_vars(index))


def _count_loads(sch: s_tir.Schedule, block: Any, of: Any = None) -> int:
    """How often the block's body reads tensors (or just the tensor `of`)."""
    loads = 0

    def count(load: Any) -> None:
        nonlocal loads
        loads += of is None or load.source.same_as(of)

    tvm_ffi.structural_walk(sch.get(block).body, ((tvm.ir.expr.TensorLoad, count),))
    return loads


def _is_plain_copy(sch: s_tir.Schedule, block: Any) -> bool:
    body = sch.get(block).body
    return isinstance(body, tirx.BufferStore) and isinstance(body.value, tvm.ir.expr.TensorLoad)


def _blocks(sch: s_tir.Schedule) -> Iterator[Any]:
    """Every block under the root, in program order."""
    root = sch.get_sblock("root")
    yield from list(sch.get_child_blocks(root))
