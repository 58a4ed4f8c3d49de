"""Reads an operator as an attention: what is multiplied, what becomes of the scores, and what of the result.

out[batch, row, feature] = sum over column of softmax(score(row, column)) * value[batch, column, feature], where score
is any expression of the sum over k of query[batch, row, k] * key[batch, column, k]. All else the function does (slices,
transposes, scaling, a mask) is inlined into these four expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from slipstream.graph.describe.blocks import TensorLoad
from slipstream.graph.gpu.triton.contraction import without_cast
from slipstream.graph.gpu.triton.simplify import simplified
from slipstream.graph.schedule_blocks import DATA_PARALLEL, REDUCTION, blocks, iter_kinds, start_schedule
from slipstream.tvm_bridge.nodes import nodes

_REFUSALS = (s_tir.schedule.ScheduleError, tvm.error.InternalError, ValueError, TypeError)


@dataclass(frozen=True)
class Attention:
    """Expressions in terms of `batch`, the variables of the loops around with their extents, and of `row`, `column`,
    `inner` and `feature`. In `score` a load of `products` is the sum of query times key, in `result` one of `mixed` the
    mean of the values; the result is stored in `output` at `indices`.
    """

    parameters: tuple[Any, ...]
    batch: tuple[tuple[Any, int], ...]
    row: Any
    column: Any
    inner: Any
    feature: Any
    sizes: tuple[int, int, int, int]  # rows, columns, length of query and key, features
    query: Any
    key: Any
    value: Any
    dtype: str
    score: Any
    products: Any
    result: Any
    mixed: Any
    output: Any
    indices: tuple[Any, ...]

    @property
    def batches(self) -> int:
        return prod(extent for _, extent in self.batch)


def find_attention(func: tirx.PrimFunc) -> Attention | None:
    """The operator as an attention; None if it is none, or has a part that cannot be inlined."""
    try:
        return _find(func)
    except _REFUSALS:
        return None


def _find(func: tirx.PrimFunc) -> Attention | None:
    schedule = start_schedule(func)
    reductions = [_name(schedule, b) for b in blocks(schedule) if REDUCTION in iter_kinds(schedule, b)]
    if len(reductions) != 4:  # scores, their maximum, the sum of their exponentials, the mean of the values
        return None
    _, maximum, _, mean = reductions
    for block in list(blocks(schedule)):
        name = _name(schedule, block)
        # Exponentials are read twice and stay; whatever else is not a reduction can be computed where it is read.
        is_exponential = _depends(schedule, block, maximum) and len(schedule.get_consumers(block)) > 1
        if name not in reductions and not is_exponential and not _depends(schedule, block, mean):
            schedule.compute_inline(block)
    stored = _name(schedule, schedule.cache_write(schedule.get_sblock(mean), 0, "local"))
    while consumers := schedule.get_consumers(schedule.get_sblock(stored)):
        schedule.reverse_compute_inline(consumers[0])
    names = [*reductions, stored]
    found = {_name(schedule, b): schedule.get(b) for b in blocks(schedule)}
    return _read(schedule.mod["main"], *(found[name] for name in names)) if len(found) == len(names) + 1 else None


def _name(schedule: s_tir.Schedule, block: Any) -> str:
    return str(schedule.get(block).name_hint)


def _depends(schedule: s_tir.Schedule, block: Any, on: str) -> bool:
    return any(_name(schedule, p) == on or _depends(schedule, p, on) for p in schedule.get_producers(block))


def _read(func: Any, scores: Any, maximum: Any, total: Any, mean: Any, stored: Any) -> Attention | None:
    del total
    query, key = _factors(scores)
    weight, value = _factors(mean)
    axes = _wide(scores, DATA_PARALLEL)
    (inner,), (column_of_mean,) = _wide(scores, REDUCTION), _wide(mean, REDUCTION)
    (row,) = [v for v in axes if _uses(query, v) and not _uses(key, v)]
    (column,) = [v for v in axes if _uses(key, v) and not _uses(query, v)]
    batch = [v for v in axes if not v.same_as(row) and not v.same_as(column)]
    # All blocks index scores, exponentials and means as the scores are stored: that says which variable is which.
    places = {id_: at for at, id_ in enumerate(scores.body.indices)}
    products = scores.body.buffer
    (score_load,) = [load for load in nodes(maximum.body.value, TensorLoad) if load.source.same_as(products)]
    (weight_load, *_) = nodes(weight, TensorLoad)
    in_maximum = dict(zip(score_load.indices, places, strict=True))
    in_mean = dict(zip(weight_load.indices, places, strict=True))
    if not any(column.same_as(v) for k, v in in_mean.items() if k.same_as(column_of_mean)):
        return None
    (feature,) = [v for v in _wide(mean, DATA_PARALLEL) if v not in in_mean]
    score = maximum.body.value.b if _is_load_of(maximum.body.value.a, maximum) else maximum.body.value.a
    mixed = mean.body.buffer
    loads = [load for load in nodes(stored.body.value, TensorLoad) if load.source.same_as(mixed)]
    (mixed_load, *_) = loads
    in_stored = {
        own: in_mean.get(there, there) for own, there in zip(mixed_load.indices, mean.body.indices, strict=True)
    }
    sizes = {iteration.var: int(iteration.dom.extent) for block in (scores, mean) for iteration in block.iter_vars}
    short = [simplified(factor, sizes) for factor in (query, key, _renamed(value, in_mean))]
    (query, dtype), (key, other), (value, another) = map(without_cast, short)
    if not dtype == other == another:
        return None
    return Attention(
        parameters=tuple(func.params),
        batch=tuple((v, sizes[v]) for v in batch),
        row=row,
        column=column,
        inner=inner,
        feature=feature,
        sizes=(sizes[row], sizes[column], sizes[inner], sizes[feature]),
        query=query,
        key=key,
        value=value,
        dtype=dtype,
        score=simplified(_renamed(score, in_maximum), sizes),
        products=products,
        result=simplified(_renamed(stored.body.value, in_stored), sizes),
        mixed=mixed,
        output=stored.body.buffer,
        indices=tuple(_renamed(index, in_stored) for index in stored.body.indices),
    )


def _factors(block: Any) -> tuple[Any, Any]:
    """The two factors of `total[...] = total[...] + left * right`."""
    value = block.body.value
    product = value.b if _is_load_of(value.a, block) else value.a
    if not isinstance(value, tirx.Add) or not isinstance(product, tirx.Mul):
        raise TypeError("not a sum of products")
    return product.a, product.b


def _is_load_of(value: Any, block: Any) -> bool:
    return isinstance(value, TensorLoad) and value.source.same_as(block.body.buffer)


def _wide(block: Any, kind: int) -> list[Any]:
    """The variables of the block's loops of a kind that run more than once."""
    return [i.var for i in block.iter_vars if int(i.iter_type) == kind and int(i.dom.extent) > 1]


def _uses(expression: Any, variable: Any) -> bool:
    return any(used.same_as(variable) for used in tirx.analysis.undefined_vars(expression))


def _renamed(expression: Any, names: dict[Any, Any]) -> Any:
    """The expression with variables in the place of others."""
    known = [(old, new) for old, new in names.items() if isinstance(old, tvm.ir.Var)]

    def rename(variable: Any) -> Any:
        return next((new for old, new in known if old.same_as(variable)), variable)

    return tvm_ffi.structural_map(expression, ((tvm.ir.Var, rename),))
