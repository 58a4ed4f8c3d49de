"""Reads an operator as one contraction: which loops are rows, columns and sums, what is multiplied, what follows.

A convolution, a matmul and a batched matmul are the same to a tensor core: out[batch, row, column] is the sum over k
of left[batch, row, k] * right[batch, k, column]. Everything before (padding, casts, a transposition) is inlined into
the two factors, everything after (bias, activation, residual, a transposition) into one expression of the sum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx.analysis import undefined_vars

from slipstream.graph.gpu.triton.simplify import simplified
from slipstream.graph.schedule_blocks import DATA_PARALLEL, REDUCTION, blocks, iter_kinds, start_schedule
from slipstream.tvm_bridge.nodes import nodes

_REFUSALS = (s_tir.schedule.ScheduleError, tvm.error.InternalError, ValueError, TypeError)


@dataclass(frozen=True)
class Axis:
    """A loop: its variable, how often it runs."""

    variable: Any
    extent: int


@dataclass(frozen=True)
class Contraction:
    """`left` and `right` are the factors of each product. `epilogue` is what is stored in `output` at `indices`, which
    use the variables `stored`, one for each of `batch`, `rows` and `columns` together; in it, a load of `sums` is the
    sum.
    """

    parameters: tuple[Any, ...]
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    left: Any
    right: Any
    dtype: str
    sums: Any
    stored: dict[Any, Any]
    output: Any
    indices: tuple[Any, ...]
    epilogue: Any

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, rows, columns and length of the sums."""
        groups = (self.batch, self.rows, self.columns, self.reduced)
        return tuple(prod(axis.extent for axis in axes) for axes in groups)  # type: ignore[return-value]


def find_contraction(func: tirx.PrimFunc) -> Contraction | None:
    """The operator as a contraction; None if it is none, or has a part that cannot be inlined."""
    try:
        return _find(func)
    except _REFUSALS:
        return None


def _find(func: tirx.PrimFunc) -> Contraction | None:
    schedule = start_schedule(func)
    anchors = [block for block in blocks(schedule) if REDUCTION in iter_kinds(schedule, block)]
    if len(anchors) != 1:
        return None
    name = schedule.get(anchors[0]).name_hint
    _inline_before(schedule, name)
    anchor = schedule.get_sblock(name)
    result = schedule.get_sblock(schedule.get(schedule.cache_write(anchor, 0, "local")).name_hint)
    _inline_after(schedule, name, schedule.get(result).name_hint)
    found = list(blocks(schedule))
    if len(found) != 2:
        return None
    main = schedule.mod["main"]
    return _read(main, schedule.get(found[0]), schedule.get(found[1]))


def _inline_before(schedule: s_tir.Schedule, anchor: str) -> None:
    """Inline every block but the contraction and those that need its result."""
    for block in list(blocks(schedule)):
        is_before = schedule.get(block).name_hint != anchor and not _needs(schedule, block, anchor)
        if is_before and schedule.get_consumers(block):
            schedule.compute_inline(block)


def _needs(schedule: s_tir.Schedule, block: Any, anchor: str) -> bool:
    producers = schedule.get_producers(block)
    return any(schedule.get(p).name_hint == anchor or _needs(schedule, p, anchor) for p in producers)


def _inline_after(schedule: s_tir.Schedule, anchor: str, result: str) -> None:
    """Inline what follows into the block that writes the result, one after the other."""
    while consumers := schedule.get_consumers(schedule.get_sblock(result)):
        if len(consumers) > 1:
            # What two blocks read has to be computed in each before it can be computed in one.
            for consumer in consumers:
                if schedule.get_consumers(consumer):
                    with contextlib.suppress(s_tir.schedule.ScheduleError):
                        schedule.compute_inline(consumer)
                        break
            else:
                raise ValueError("two results")
            continue
        schedule.reverse_compute_inline(consumers[0])


def _read(func: tirx.PrimFunc, anchor: Any, result: Any) -> Contraction | None:
    if not isinstance(anchor.body, tirx.BufferStore) or not isinstance(result.body, tirx.BufferStore):
        return None
    factors = _factors(anchor.body)
    if factors is None or not _starts_at_zero(anchor):
        return None
    extents = {iter_var.var: int(iter_var.dom.extent) for iter_var in anchor.iter_vars}
    (left, dtype), (right, other) = (without_cast(simplified(factor, extents)) for factor in factors)
    if dtype != other:
        return None
    kinds: dict[int, list[Axis]] = {REDUCTION: [], DATA_PARALLEL: []}
    for iter_var in anchor.iter_vars:
        kinds[int(iter_var.iter_type)].append(Axis(iter_var.var, int(iter_var.dom.extent)))
    reads = [list(undefined_vars(factor)) for factor in (left, right)]
    groups: dict[tuple[bool, bool], list[Axis]] = {}
    for axis in kinds[DATA_PARALLEL]:
        in_left, in_right = (any(axis.variable.same_as(used) for used in variables) for variables in reads)
        if not (in_left or in_right):
            in_left = True
        groups.setdefault((in_left, in_right), []).append(axis)
    if len(groups.get((True, True), ())) and not ((True, False) in groups and (False, True) in groups):
        return None  # a depthwise convolution, or products of vectors
    order = list(anchor.body.indices)
    stored = _stored_variables(order, kinds[DATA_PARALLEL], result, anchor.body.buffer)
    if stored is None:
        return None
    return Contraction(
        parameters=tuple(func.params),
        batch=tuple(groups.get((True, True), ())),
        rows=tuple(groups.get((True, False), ())),
        columns=tuple(groups.get((False, True), ())),
        reduced=tuple(kinds[REDUCTION]),
        left=left,
        right=right,
        dtype=dtype,
        sums=anchor.body.buffer,
        stored=stored,
        output=result.body.buffer,
        indices=tuple(result.body.indices),
        epilogue=simplified(result.body.value, {i.var: int(i.dom.extent) for i in result.iter_vars}),
    )


def _factors(store: Any) -> tuple[Any, Any] | None:
    """The two factors of `sums[...] = sums[...] + left * right`."""
    value = store.value
    if not isinstance(value, tirx.Add):
        return None
    before, product = value.a, value.b
    if not isinstance(before, tvm.ir.expr.TensorLoad):
        before, product = product, before
    if not isinstance(before, tvm.ir.expr.TensorLoad) or not before.source.same_as(store.buffer):
        return None
    return (product.a, product.b) if isinstance(product, tirx.Mul) else None


def _starts_at_zero(anchor: Any) -> bool:
    init = anchor.init
    return isinstance(init, tirx.BufferStore) and isinstance(init.value, tirx.FloatImm) and init.value.value == 0.0


def without_cast(factor: Any) -> tuple[Any, str]:
    """The factor as it is before it is converted to the type of the sums, and its type."""
    inner = factor.value if isinstance(factor, tirx.Cast) else factor
    return inner, str(inner.ty.dtype)


def _stored_variables(order: Sequence[Any], axes: Sequence[Axis], result: Any, sums: Any) -> dict[Any, Any] | None:
    """Which variable of the result's block stands for which axis: both index the sums the same way."""
    loads = [load for load in nodes(result.body.value, tvm.ir.expr.TensorLoad) if load.source.same_as(sums)]
    if not loads:
        return None
    stored: dict[Any, Any] = {}
    for load in loads:
        for index, own in zip(load.indices, order, strict=True):
            if isinstance(index, tirx.IntImm):
                continue
            if not any(own.same_as(axis.variable) for axis in axes) or not isinstance(index, tvm.ir.Var):
                return None
            stored[index] = own
    return stored
