"""Reading the blocks and loops of a schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx.analysis import undefined_vars

from slipstream.machine.target import Target
from slipstream.tvm_bridge.nodes import nodes

DATA_PARALLEL, REDUCTION = 0, 2
_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")
# Blocks marked so only depend on weights: they are cut out and computed at compile time.
PREPROC = "meta_schedule.layout_rewrite_preproc"
# Vectors that a core reads and writes in about a microsecond, in which others would only have been told to begin.
_MINOR_STEPS = 512
_MINOR_SHARE = 4


def start_schedule(func: tirx.PrimFunc) -> s_tir.Schedule:
    """A schedule of `func` that leaves `func` itself alone.

    TVM schedules a function in place if it has no other reference, and does not detect that a function made by
    `with_attr` shares its body with the original. A new root block makes the sharing visible.
    """
    realize = func.body
    if not isinstance(realize, s_tir.SBlockRealize):
        raise ValueError("a function without a root block cannot be scheduled")
    root = s_tir.SBlockRealize(realize.iter_values, realize.predicate, realize.block)
    return s_tir.Schedule(tvm.IRModule({"main": func.with_body(root).with_attr("global_symbol", "main")}))


def blocks(sch: s_tir.Schedule) -> Iterator[Any]:
    """Every block under the root, in program order."""
    root = sch.get_sblock("root")
    yield from list(sch.get_child_blocks(root))


def iter_kinds(sch: s_tir.Schedule, block: Any) -> list[int]:
    return [int(iter_var.iter_type) for iter_var in sch.get(block).iter_vars]


def split_by_kind(sch: s_tir.Schedule, block: Any) -> tuple[list[Any], list[Any]]:
    """(data-parallel loops, reduction loops) around a block."""
    loops, kinds = sch.get_loops(block), iter_kinds(sch, block)
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == DATA_PARALLEL]
    reductions = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == REDUCTION]
    return spatial, reductions


def extent_of(sch: s_tir.Schedule, loop: Any) -> int:
    return int(sch.get(loop).extent)


def elements_of(buffer: Any) -> int:
    total = 1
    for extent in buffer.shape:
        total *= int(extent)
    return total


def iterations(sch: s_tir.Schedule, block: Any) -> int:
    """How often the body of a block runs."""
    return math.prod(extent_of(sch, loop) for loop in sch.get_loops(block))


def is_minor(sch: s_tir.Schedule, block: Any, target: Target) -> bool:
    """Whether the block does so little beside another one that one core has done it before others have begun."""
    own = _work(sch, block)
    if own > _MINOR_STEPS * target.vector_elements:
        return False
    return any(_work(sch, other) >= own * _MINOR_SHARE for other in blocks(sch))


def _work(sch: s_tir.Schedule, block: Any) -> int:
    return max(iterations(sch, block), *(elements_of(region.source) for region in sch.get(block).writes))


def uses(region: Any, variable: Any) -> bool:
    return any(used.same_as(variable) for part in region.region for used in undefined_vars(part.min))


def reads_along(sch: s_tir.Schedule, block: Any, axis: int) -> bool:
    """Whether iteration variable `axis` walks the last, contiguous index of the first tensor read."""
    stmt = sch.get(block)
    if not stmt.reads or not stmt.reads[0].region:
        return False
    variable = stmt.iter_vars[axis].var
    index = stmt.reads[0].region[-1].min
    return any(used.same_as(variable) for used in undefined_vars(index))


def transposed_axis(sch: s_tir.Schedule, block: Any) -> int | None:
    """The iteration variable, not the last, that walks the contiguous index of the one tensor a copy reads."""
    stmt = sch.get(block)
    if len(stmt.reads) != 1 or not stmt.reads[0].region or not is_plain_copy(sch, block):
        return None
    index = stmt.reads[0].region[-1].min
    axes = [axis for axis, iter_var in enumerate(stmt.iter_vars) if index.same_as(iter_var.var)]
    return axes[0] if axes and axes[0] != len(stmt.iter_vars) - 1 else None


def is_plain_copy(sch: s_tir.Schedule, block: Any) -> bool:
    body = sch.get(block).body
    return isinstance(body, tirx.BufferStore) and isinstance(body.value, tvm.ir.expr.TensorLoad)


def pads_rows(sch: s_tir.Schedule, block: Any) -> bool:
    """Whether the block copies a tensor with a border along other axes than the last: whole rows are in or out."""
    stmt = sch.get(block)
    value = stmt.body.value if isinstance(stmt.body, tirx.BufferStore) else None
    if not isinstance(value, tvm.ir.Call) or value.op != _IF_THEN_ELSE:
        return False
    condition, inside, _ = value.args
    return _is_one_element(inside) and not any(
        used.same_as(stmt.iter_vars[-1].var) for used in undefined_vars(condition)
    )


def _is_one_element(value: Any) -> bool:
    """Whether an expression is an element of a tensor, or such a one of bytes converted."""
    if isinstance(value, tirx.Cast):
        return _is_one_element(value.value)
    return isinstance(value, tvm.ir.expr.TensorLoad)


def count_loads(sch: s_tir.Schedule, block: Any, of: Any = None) -> int:
    """How often the block's body reads tensors (or just the tensor `of`)."""
    loads = nodes(sch.get(block).body, tvm.ir.expr.TensorLoad)
    return sum(of is None or load.source.same_as(of) for load in loads)


def divisors(number: int, limit: int) -> list[int]:
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


def vector_width(extent: int, target: Target) -> int:
    """The largest power of two that divides `extent` and fits a register; 1 if it is not worth it."""
    width = math.gcd(extent, target.vector_elements)
    return width if width > 2 else 1
