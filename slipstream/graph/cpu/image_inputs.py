"""Convolutions read images as the model is given them: the transposition joins the convolution's function.

An image comes channels first and has few of them. A convolution computes vectors of results and reads one element of
the image for all of them, so it may as well read that where it was: a pass over the image is saved.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.extents import are_known
from slipstream.graph.relax_walk import bindings_of_main, is_call_tir

_MOST_CHANNELS = 4
_RANK = 4
_CONVOLUTION_LIKE = 4  # TVM's number for an operator that element-wise ones join


def join_transposes(mod: tvm.IRModule) -> tvm.IRModule:
    """A module after `FuseOps` whose convolutions transpose the images they read themselves."""
    moved = {binding.var: binding.value for binding in bindings_of_main(mod) if _moves_image(binding.value)}
    main = mod["main"]
    if not moved or len(main.body.blocks) != 1 or not isinstance(main.body.blocks[0], relax.DataflowBlock):
        return mod
    builder = relax.BlockBuilder(mod)
    # A transposition that nothing else reads is no longer called, and removed as dead code.
    joined = relax.DataflowBlock([_joined(mod, builder, binding, moved) for binding in bindings_of_main(mod)])
    body = relax.SeqExpr([joined], main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    builder.update_func(mod.get_global_var("main"), function)
    return builder.finalize()


def _moves_image(value: Any) -> bool:
    """Whether it is a call that makes the few channels of a tensor its last dimension."""
    if not is_call_tir(value) or "transpose" not in str(value.args[0].name_hint) or len(value.args[1].fields) != 1:
        return False
    before, after = (_extents(tensor.ty.shape) for tensor in (value.args[1].fields[0], value))
    return len(before) == _RANK and before[1] <= _MOST_CHANNELS and after == [before[0], *before[2:], before[1]]


def _extents(shape: Any) -> list[int]:
    """Of a tensor; none if some are not known before the run."""
    return list(map(int, shape)) if isinstance(shape, relax.ShapeExpr) and are_known(shape) else []


def _joined(mod: tvm.IRModule, builder: relax.BlockBuilder, binding: Any, moved: dict[Any, Any]) -> Any:
    """The binding; if it is a convolution of one of `moved`, as a call of a function that does both."""
    call = binding.value
    is_fused = isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.GlobalVar) and len(call.args) > 0
    if not is_fused or call.args[0] not in moved or not _begins_with_convolution(mod, mod[call.op]):
        return binding
    function = mod[call.op]
    transpose = moved[call.args[0]]
    image = transpose.args[1].fields[0]
    both = builder.add_func(_with_transpose(builder, function, transpose, image.ty), str(call.op.name_hint))
    return relax.VarBinding(binding.var, builder.normalize(relax.Call(both, [image, *call.args[1:]])))


def _begins_with_convolution(mod: tvm.IRModule, function: Any) -> bool:
    """Whether a fused function computes a convolution, or the like, of its first argument alone."""
    calls = [binding.value for block in function.body.blocks for binding in block.bindings]
    if not calls or not all(map(is_call_tir, calls)):
        return False
    if int(mod[calls[0].args[0]].attrs.get("op_pattern", -1)) != _CONVOLUTION_LIKE:
        return False
    reads = [argument.same_as(function.params[0]) for call in calls for argument in call.args[1].fields]
    return bool(reads[0]) and sum(reads) == 1


def _with_transpose(builder: relax.BlockBuilder, function: Any, transpose: Any, image: Any) -> relax.Function:
    parameter, inside = relax.Var("image", image), relax.DataflowVar("moved", function.params[0].ty)
    call = relax.Call(transpose.op, [transpose.args[0], relax.Tuple([parameter])], transpose.attrs, transpose.ty_args)
    (block,) = function.body.blocks
    rest = [relax.VarBinding(b.var, _Replace(function.params[0], inside).visit_expr(b.value)) for b in block.bindings]
    first = relax.VarBinding(inside, builder.normalize(call))
    body = relax.SeqExpr([relax.DataflowBlock([first, *rest])], function.body.body)
    parameters = [parameter, *function.params[1:]]
    return relax.Function(parameters, body, function.ret_ty, function.is_pure, function.attrs)


@mutator
class _Replace(PyExprMutator):  # type: ignore[misc]
    def __init__(self, old: Any, new: Any) -> None:
        super().__init__()
        self._old, self._new = old, new

    def visit_var_(self, op: Any) -> Any:
        return self._new if op.same_as(self._old) else op
