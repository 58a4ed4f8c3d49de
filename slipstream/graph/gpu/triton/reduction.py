"""Reads an operator as reductions of rows: norms, softmax, pools, means, depthwise convolutions, products of vectors.

Each result needs the elements of one row only: first one or several reductions of the row, each of which may use those
before it, then an expression of these and of the row's elements. Everything else is inlined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx

from slipstream.graph.gpu.triton.expressions import FLOATS
from slipstream.graph.gpu.triton.simplify import simplified
from slipstream.graph.schedule_blocks import REDUCTION, blocks, iter_kinds, start_schedule
from slipstream.tvm_bridge.nodes import nodes

_REFUSALS = (s_tir.schedule.ScheduleError, tvm.error.InternalError, ValueError, TypeError)
SUM, LARGEST, SMALLEST = "sum", "max", "min"
_KINDS = {tirx.Add: SUM, tirx.Max: LARGEST, tirx.Min: SMALLEST}


@dataclass(frozen=True)
class Stage:
    """One pass over a row: `value` for each element, in terms of the variables of `rows` and `inner` with extents.

    A reduction combines the values in the way of its `kind` into `buffer`; the last stage stores them there, at
    `indices`. Loads of the buffers of earlier stages are of the row's own element.
    """

    kind: str
    rows: tuple[tuple[Any, int], ...]
    inner: tuple[tuple[Any, int], ...]
    value: Any
    buffer: Any
    indices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Reduction:
    parameters: tuple[Any, ...]
    stages: tuple[Stage, ...]
    result: Stage

    @property
    def rows(self) -> int:
        return prod(extent for _, extent in self.result.rows)

    @property
    def length(self) -> int:
        """Of a row."""
        return max(prod(extent for _, extent in stage.inner) for stage in (*self.stages, self.result))


def find_reduction(func: tirx.PrimFunc) -> Reduction | None:
    """The operator as reductions of rows; None if it is something else."""
    try:
        return _find(func)
    except _REFUSALS:
        return None


def _find(func: tirx.PrimFunc) -> Reduction | None:
    schedule = start_schedule(func)
    names = [schedule.get(b).name_hint for b in blocks(schedule) if REDUCTION in iter_kinds(schedule, b)]
    if not names:
        return None
    for block in list(blocks(schedule)):
        if schedule.get(block).name_hint not in names and schedule.get_consumers(block):
            schedule.compute_inline(block)
    last = list(blocks(schedule))[-1]
    if schedule.get(last).name_hint in names:
        schedule.cache_write(last, 0, "local")
    found = [schedule.get(block) for block in blocks(schedule)]
    if len(found) != len(names) + 1:
        return None
    stages = tuple(_reduction(block) for block in found[:-1])
    rows = {prod(extent for _, extent in stage.rows) for stage in stages}
    result = _result(found[-1], [stage.buffer for stage in stages])
    if rows != {prod(extent for _, extent in result.rows)}:
        return None
    return Reduction(tuple(schedule.mod["main"].params), stages, result)


def _reduction(block: Any) -> Stage:
    store = block.body
    combined: Any = _without_casts(store.value) if isinstance(store, tirx.BufferStore) else None
    if type(combined) not in _KINDS:
        raise TypeError("not a sum, a maximum or a minimum")
    own, value = combined.a, combined.b
    if not _is_own(own, store):
        own, value = value, own
    if not _is_own(own, store):
        raise TypeError("not a reduction")
    extents = {i.var: int(i.dom.extent) for i in block.iter_vars}
    rows = _in_order(store.indices, extents)
    inner = tuple((i.var, extents[i.var]) for i in block.iter_vars if int(i.iter_type) == REDUCTION)
    return Stage(_KINDS[type(combined)], rows, inner, simplified(value, extents), store.buffer)


def _result(block: Any, reduced: Sequence[Any]) -> Stage:
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        raise TypeError("not a store")
    extents = {i.var: int(i.dom.extent) for i in block.iter_vars}
    value = simplified(store.value, extents)
    read = nodes(value, tvm.ir.expr.TensorLoad)
    loads = [load for load in read if any(load.source.same_as(buffer) for buffer in reduced)]
    if not loads:
        raise ValueError("the result needs no reduction")
    rows = _in_order(loads[0].indices, extents)
    for load in loads:
        if [variable for variable, _ in _in_order(load.indices, extents)] != [variable for variable, _ in rows]:
            raise ValueError("reductions of different rows")
    own = {variable for variable, _ in rows}
    inner = tuple((v, extent) for v, extent in extents.items() if v not in own and extent > 1)
    return Stage("", rows, inner, value, store.buffer, tuple(store.indices))


def _in_order(indices: Sequence[Any], extents: dict[Any, int]) -> tuple[tuple[Any, int], ...]:
    """The variables that index a buffer, with their extents; those that run once are left out."""
    found = []
    for index in indices:
        if isinstance(index, tirx.IntImm):
            continue
        if not isinstance(index, tvm.ir.Var):
            raise TypeError("an index that is no variable")
        if extents[index] > 1:
            found.append((index, extents[index]))
    return tuple(found)


def _without_casts(value: Any) -> Any:
    """Between floats: everything is computed in float32."""
    while isinstance(value, tirx.Cast) and str(value.ty.dtype) in FLOATS and str(value.value.ty.dtype) in FLOATS:
        value = value.value
    return value


def _is_own(value: Any, store: Any) -> bool:
    value = _without_casts(value)
    return isinstance(value, tvm.ir.expr.TensorLoad) and value.source.same_as(store.buffer)
