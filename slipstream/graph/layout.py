"""2-D convolutions in NHWC, and every operator between two of them carried along.

TVM's layout conversion passes some operators only in one spelling, and puts a transpose on either side of the others.
They are respelled first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op, transform
from tvm.relax.dpl import is_op, rewrite_call, wildcard

from slipstream.graph.relax_walk import calls_in, is_constant, with_main

_RANK = 4
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")

_x, _y = wildcard(), wildcard()
Respelling = Callable[[Any, Any], Any]


def convert_layout(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with its 2-D convolutions in NHWC, their filters in OHWI."""
    # A transposed convolution would be carried along into a layout that TVM cannot lower afterwards.
    if _calls(mod, "relax.nn.conv2d_transpose"):
        return mod
    convert = transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})
    return tvm.transform.Sequential([transform.Normalize(), convert, transform.Normalize()])(respell(mod))


def respell(mod: tvm.IRModule) -> tvm.IRModule:
    """The same computation in operators that layout conversion can see through."""
    main = mod["main"]
    for name, pattern, change in _respellings():
        # Looking for a pattern takes seconds in a large model.
        if any(change(call, dict(zip((_x, _y), call.args, strict=False))) is not call for call in _calls(mod, name)):
            main = rewrite_call(pattern, change, main)
    return with_main(mod, main)


def _respellings() -> list[tuple[str, Any, Respelling]]:
    """(operator, pattern of its calls, what to write in their place)."""
    one = [("squeeze", _squeeze), ("stack", _stack), ("nn.leakyrelu", _leaky_relu)]
    return [
        *((f"relax.{name}", is_op(f"relax.{name}")(_x), change) for name, change in one),
        ("relax.clip", is_op("relax.clip")(_x, wildcard(), wildcard()), _clip),
        ("relax.nn.layer_norm", is_op("relax.nn.layer_norm")(_x, wildcard(), wildcard()), _layer_norm),
        *((f"relax.{name}", is_op(f"relax.{name}")(_x, _y), _full_rank) for name in _BINARY),
    ]


def _squeeze(call: Any, matched: Any) -> Any:
    """Without negative axes, for which the conversion reads foreign memory."""
    axes = call.attrs.axis
    return call if axes is None else op.squeeze(matched[_x], [int(a) % len(matched[_x].ty.shape) for a in axes])


def _stack(call: Any, matched: Any) -> Any:
    if not isinstance(matched[_x], relax.Tuple):
        return call
    axis = int(call.attrs.axis) % len(call.ty.shape)
    return op.concat([op.expand_dims(part, axis) for part in matched[_x].fields], axis)


def _clip(call: Any, matched: Any) -> Any:
    low, high = (getattr(bound, "value", None) for bound in call.args[1:])
    if not _is_float_image(call) or not isinstance(low, int | float) or not isinstance(high, int | float):
        return call
    dtype = str(call.ty.dtype)
    return op.minimum(op.maximum(matched[_x], relax.const(float(low), dtype)), relax.const(float(high), dtype))


def _leaky_relu(call: Any, matched: Any) -> Any:
    slope = float(call.attrs.alpha)
    if not _is_float_image(call) or not 0 <= slope <= 1:
        return call
    return op.maximum(matched[_x], op.multiply(matched[_x], relax.const(slope, str(call.ty.dtype))))


def _layer_norm(call: Any, matched: Any) -> Any:
    """Over channels and what is behind them as one axis: the conversion would leave scale and shift in their order."""
    x, (_, *parameters) = matched[_x], call.args
    axes = [int(axis) % x.ty.ndim for axis in call.attrs.axes]
    if x.ty.ndim != _RANK or 1 not in axes or len(axes) == 1 or axes != list(range(axes[0], _RANK)):
        return call
    kept, joined = list(x.ty.shape[: axes[0]]), math.prod(int(extent) for extent in x.ty.shape[axes[0] :])
    flat = [op.reshape(x, [*kept, joined]), *(op.reshape(parameter, [joined]) for parameter in parameters)]
    attributes = call.attrs
    normalised = op.nn.layer_norm(*flat, [len(kept)], attributes.epsilon, attributes.center, attributes.scale)
    return op.reshape(normalised, x.ty.shape)


def _full_rank(call: Any, matched: Any) -> Any:
    """A constant of lower rank, such as one number per channel, gets the leading ones it stands for."""
    if not _is_float_image(call):
        return call
    operands = [_with_leading_ones(operand) for operand in (matched[_x], matched[_y])]
    if all(new is old for new, old in zip(operands, (matched[_x], matched[_y]), strict=True)):
        return call
    return relax.Call(call.op, operands, call.attrs)


def _with_leading_ones(operand: Any) -> Any:
    if not is_constant(operand) or not 0 < operand.ty.ndim < _RANK:
        return operand
    array = operand.value.numpy()
    return relax.const(np.reshape(array, (1,) * (_RANK - array.ndim) + array.shape), str(array.dtype))


def _is_float_image(call: Any) -> bool:
    kind = call.ty
    return isinstance(kind, relax.TensorType) and kind.ndim == _RANK and str(kind.dtype).startswith("float")


def _calls(mod: tvm.IRModule, name: str) -> list[Any]:
    """The calls of the operator `name` in `main`."""
    operator = tvm.ir.Op.get(name)
    return [call for call in calls_in(mod["main"]) if call.op == operator]
