"""The results of a split, and of a gather at one place, as slices.

A slice is a function of one tensor and known indices, which fuses with what reads it: the parts of an attention's joint
projection are then read where they are, without a copy of their own.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.extents import are_known
from slipstream.graph.relax_walk import cleaned, is_constant, with_main

_SPLIT, _TAKE = tvm.ir.Op.get("relax.split"), tvm.ir.Op.get("relax.take")


def use_slices(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with every split, and every gather at one place, as slices."""
    return cleaned(with_main(mod, _SlicesFor().visit_expr(mod["main"])))


@mutator
class _SlicesFor(PyExprMutator):  # type: ignore[misc]
    def visit_tuple_getitem_(self, item: Any) -> Any:
        whole = self.visit_expr(item.tuple_value)
        split = self.lookup_binding(whole) if isinstance(whole, relax.Var) else None
        if not isinstance(split, relax.Call) or split.op != _SPLIT:
            return relax.TupleGetItem(whole, item.index)
        axis = int(split.attrs.axis) % len(split.args[0].ty.shape)
        sizes = [field.shape[axis] for field in whole.ty.fields]
        if not are_known(sizes):
            return relax.TupleGetItem(whole, item.index)
        begin = sum(int(size) for size in sizes[: item.index])
        return op.strided_slice(split.args[0], [axis], [begin], [begin + int(sizes[item.index])])

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op != _TAKE or not is_constant(call.args[1]) or call.args[1].ty.ndim or call.attrs.axis is None:
            return call
        shape = list(call.args[0].ty.shape)
        axis = int(call.attrs.axis) % len(shape)
        place = int(call.args[1].value.numpy())
        if not isinstance(shape[axis], tirx.IntImm) or not -int(shape[axis]) <= place < int(shape[axis]):
            return call
        begin = place % int(shape[axis])
        sliced = self.builder_.emit(op.strided_slice(call.args[0], [axis], [begin], [begin + 1]))
        return op.squeeze(sliced, [axis])
