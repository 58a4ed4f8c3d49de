"""Comparisons and arithmetic of booleans, in bytes: LLVM has no instruction for what TVM makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tvm import ir, relax, te, topi

Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_BINARY: dict[str, Callable[..., te.Tensor]] = {
    "relax.equal": topi.equal,
    "relax.not_equal": topi.not_equal,
    "relax.less": topi.less,
    "relax.less_equal": topi.less_equal,
    "relax.greater": topi.greater,
    "relax.greater_equal": topi.greater_equal,
    "relax.add": topi.add,
    "relax.multiply": topi.multiply,
    "relax.maximum": topi.maximum,
    "relax.minimum": topi.minimum,
}
_REDUCTIONS: dict[str, Callable[..., te.Tensor]] = {"relax.max": topi.max, "relax.min": topi.min}


def with_booleans(legalizers: Mapping[str, Legalizer]) -> dict[str, Legalizer]:
    """`legalizers` and, for operators that booleans may be given to, those that compute with them in bytes."""
    functions = _BINARY | _REDUCTIONS
    ours = {name: _legalizer(name, function, legalizers.get(name)) for name, function in functions.items()}
    return {**legalizers, **ours}


def _legalizer(name: str, function: Callable[..., te.Tensor], other: Legalizer | None) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not all(str(operand.ty.dtype) == "bool" for operand in call.args):
            return (other or ir.Op.get(name).get_attr("FLegalize"))(builder, call)
        own = function
        if name in _REDUCTIONS:
            axes = None if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
            own = partial(function, axis=axes, keepdims=call.attrs.keepdims)
        return builder.call_te(
            lambda *operands: topi.cast(own(*(topi.cast(operand, "int8") for operand in operands)), "bool"),
            *call.args,
            primfunc_name_hint=name.removeprefix("relax."),
        )

    return legalize
