"""exp, tanh, erf and what is made of them as polynomials that vectorise.

LLVM turns a vector `exp` into one call of the C library per lane, which makes a sigmoid cost more than the
convolution before it. TOPI's polynomials stay within a few units of the last place of float32; other types
keep the exact form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from slipstream.graph.relax_walk import calls_in

Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _sigmoid(x: te.Tensor) -> te.Tensor:
    return topi.divide(1.0, topi.add(1.0, topi.fast_exp(topi.negative(x))))


def _silu(x: te.Tensor) -> te.Tensor:
    return topi.multiply(x, _sigmoid(x))


def _gelu(x: te.Tensor) -> te.Tensor:
    return topi.multiply(topi.multiply(x, 0.5), topi.add(topi.fast_erf(topi.multiply(x, 0.5**0.5)), 1.0))


def _erf(x: te.Tensor) -> te.Tensor:
    """erf of other types than float32: LLVM has none, so that of float64 is the C library's."""
    if x.dtype == "float64":
        return te.compute(x.shape, lambda *i: tirx.call_pure_extern("float64", "erf", x(*i)), name="erf")
    return topi.cast(topi.fast_erf(topi.cast(x, "float32")), x.dtype)


def _exact_gelu(x: te.Tensor) -> te.Tensor:
    return topi.multiply(topi.multiply(x, 0.5), topi.add(_erf(topi.multiply(x, 0.5**0.5)), 1.0))


def _elementwise(fast: Callable[[te.Tensor], te.Tensor], exact: Callable[[te.Tensor], te.Tensor]) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return builder.call_te(fast if _is_float32(call) else exact, call.args[0])

    return legalize


def _softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    softmax = topi.nn.fast_softmax if _is_float32(call) else topi.nn.softmax
    return builder.call_te(softmax, call.args[0], call.attrs.axis)


def _is_float32(call: Any) -> bool:
    return str(call.ty.dtype) == "float32"


LEGALIZERS: dict[str, Legalizer] = {
    "relax.exp": _elementwise(topi.fast_exp, topi.exp),
    "relax.tanh": _elementwise(topi.fast_tanh, topi.tanh),
    "relax.erf": _elementwise(topi.fast_erf, _erf),
    "relax.sigmoid": _elementwise(_sigmoid, topi.sigmoid),
    "relax.nn.silu": _elementwise(_silu, lambda x: topi.multiply(x, topi.sigmoid(x))),
    "relax.nn.gelu": _elementwise(_gelu, _exact_gelu),
    "relax.nn.softmax": _softmax,
}


def has_polynomials(mod: Any) -> bool:
    """Whether preparation turns a function of an imported module into a polynomial."""
    return any(getattr(call.op, "name", "") in LEGALIZERS and _is_float32(call) for call in calls_in(mod["main"]))
