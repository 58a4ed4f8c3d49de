"""Quantised operators as dequantisation, an operator on floats and quantisation, or in float32 on whole numbers.

The first is what the rest of a quantised model looks like, and becomes integer arithmetic on a CPU. It is for constant
weights without a zero point. The second is for all else: a product of 8-bit numbers is exact in float32 while its sums
stay below 2**24, so that rounding gives the same levels as integer arithmetic. Where a sum could be larger, the
reduction is cut into parts that are added up as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite, attributes_of, inputs_of, refusal
from slipstream.frontends.onnx_rewrites.fused import MICROSOFT

_EXACT = 1 << 24
_IMAGES = 4  # dimensions of a batch of them
_OF_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _levels(g: Builder, value: str, zero: str, axis: int | None = None, rank: int = 0) -> str:
    """Whole numbers as float32, less their zero point, which may be one number for each entry along an axis."""
    levels = g.cast(value, np.float32)
    if not zero:
        return levels
    known = g.value(zero)
    if known is not None and not known.any():
        return levels
    return str(g.op("Sub", levels, _along(g, g.cast(zero, np.float32), zero, axis, rank)))


def _along(g: Builder, value: str, like: str, axis: int | None, rank: int) -> str:
    """`value` as shaped for broadcasting if it has more than one element (as `like`, whose shape is known)."""
    shape = g.shape(like)
    if axis is None or shape is None or len(shape) != 1 or shape[0] == 1:
        return g.reshape(value) if shape == (1,) else value
    return g.reshape(value, *(shape[0] if a == axis else 1 for a in range(rank)))


def _requantised(g: Builder, sums: str, scale: str, zero: str, like: str) -> str:
    """round(sums * scale) + zero, saturated to the type of `like`."""
    limits = np.iinfo(g.dtype(like))
    level = g.round(g.op("Mul", sums, scale))
    if zero:
        level = g.op("Add", level, g.cast(zero, np.float32))
    return g.cast(_clipped(g, level, limits.min, limits.max), g.dtype(like))


def _clipped(g: Builder, value: str, low: float, high: float) -> str:
    return str(g.op("Min", g.op("Max", value, g.constant(low, np.float32)), g.constant(high, np.float32)))


def _parts(g: Builder, weights: str, zero: str, reduced: tuple[int, ...], length: int, inner: int) -> int:
    """Into how many parts a reduction over `length` x `inner` has to be cut for its sums to be exact."""
    known = g.value(weights)
    of_zero = g.value(zero) if zero else None
    if known is not None and (not zero or (of_zero is not None and of_zero.size == 1)):
        shifted = np.abs(known.astype(np.int64) - (0 if of_zero is None else int(of_zero.reshape(-1)[0])))
        largest = 255 * int(shifted.sum(axis=reduced).max(initial=0))
    else:
        largest = 255 * 255 * length * inner
    return min(length, -(-largest // _EXACT))


def _in_parts(g: Builder, parts: int, length: int, product: Callable[[int, int], str]) -> str:
    """The sum of `product(begin, end)` over `parts` ranges, as int32."""
    ends = [length * n // parts for n in range(parts + 1)]
    total = ""
    for begin, end in pairwise(ends):
        one = g.cast(product(begin, end), np.int32)
        total = str(g.op("Add", total, one)) if total else one
    return total


def _conv_sums(
    g: Builder, node: onnx.NodeProto, x: str, w: str, x_zero: str, w_zero: str, w_shape: tuple[int, ...]
) -> str:
    """The convolution of whole numbers, as int32."""
    attributes = attributes_of(node)
    own = {name: attributes[name] for name in _OF_CONV if name in attributes}
    data = _levels(g, x, x_zero)
    filters = _levels(g, w, w_zero, 0, len(w_shape))
    inner = int(np.prod(w_shape[2:]))
    parts = _parts(g, w, w_zero, tuple(range(1, len(w_shape))), w_shape[1], inner)
    if parts > 1 and attributes.get("group", 1) != 1:
        raise refusal(node, "the sums of a grouped convolution do not fit float32")

    def product(begin: int, end: int) -> str:
        if parts == 1:
            return str(g.op("Conv", data, filters, **own))
        return str(g.op("Conv", g.slice(data, 1, begin, end), g.slice(filters, 1, begin, end), **own))

    return _in_parts(g, parts, w_shape[1], product)


def _matmul_sums(g: Builder, a: str, b: str, a_zero: str, b_zero: str, shapes: Any) -> str:
    """The product of matrices of whole numbers, as int32."""
    a_shape, b_shape = shapes
    # A zero point for each row of the first operand, for each column of the second.
    left = _levels(g, a, a_zero, len(a_shape) - 2, len(a_shape))
    right = _levels(g, b, b_zero, len(b_shape) - 1, len(b_shape))
    length = a_shape[-1]
    reduced = max(0, len(b_shape) - 2)
    parts = _parts(g, b, b_zero, (reduced,), length, 1)

    def product(begin: int, end: int) -> str:
        if parts == 1:
            return str(g.op("MatMul", left, right))
        cut = g.slice(left, len(a_shape) - 1, begin, end), g.slice(right, reduced, begin, end)
        return str(g.op("MatMul", *cut))

    return _in_parts(g, parts, length, product)


def _conv_integer(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, w, x_zero, w_zero = inputs_of(node, 4)
    w_shape, attributes = g.static_shape(node, 1), attributes_of(node)
    is_plain = len(w_shape) == _IMAGES and not any(step > 1 for step in attributes.get("dilations", ()))
    is_plain &= attributes.get("group", 1) == 1 or w_shape[1] == 1
    if is_plain and (not x_zero or g.shape(x_zero) in ((), (1,))) and _is_centred(g, w, w_zero):
        own = {name: attributes[name] for name in _OF_CONV if name in attributes}
        one = g.constant(1.0, np.float32)
        zero = x_zero or g.constant(0, g.dtype(x))
        product = g.op("Conv", _dequantize(g, x, one, zero), _dequantize(g, w, one, w_zero), **own)
        return [g.cast(product, np.int32)]
    return [_conv_sums(g, node, x, w, x_zero, w_zero, w_shape)]


def _matmul_integer(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    a, b, a_zero, b_zero = inputs_of(node, 4)
    if a_zero and g.shape(a_zero) in ((), (1,)) and _is_centred(g, b, b_zero):
        one = g.constant(1.0, np.float32)
        product = g.op("MatMul", _dequantize(g, a, one, a_zero), _dequantize(g, b, one, b_zero))
        return [g.cast(product, np.int32)]
    return [_matmul_sums(g, a, b, a_zero, b_zero, (g.static_shape(node), g.static_shape(node, 1)))]


_PER_AXIS = 13


def _is_centred(g: Builder, weights: str, zero: str, *scales: str) -> bool:
    """Whether weights are constant int8 with zero point 0, and scales known, of one tensor before `_PER_AXIS`."""
    known = [g.value(name) for name in scales]
    if g.value(weights) is None or g.dtype(weights) != np.int8 or any(scale is None for scale in known):
        return False
    of_zero = g.value(zero) if zero else np.zeros(1)
    several = any(scale is not None and scale.size > 1 for scale in known)
    return of_zero is not None and not of_zero.any() and (not several or g.opset >= _PER_AXIS)


def _dequantize(g: Builder, value: str, scale: str, zero: str, axis: int | None = None) -> str:
    """A DequantizeLinear node; `axis` is left out where there is one scale."""
    known = g.value(scale)
    one = known is None or known.size == 1
    if known is not None and one and known.ndim:
        scale = g.constant(known.reshape(()))
    of_zero = g.value(zero) if zero else None
    if of_zero is not None and of_zero.size == 1 and of_zero.ndim:
        zero = g.constant(of_zero.reshape(()))
    if zero and not one and of_zero is not None and of_zero.size == 1 and known is not None:
        zero = g.constant(np.full(known.shape, of_zero.reshape(-1)[0], of_zero.dtype))
    return str(g.op("DequantizeLinear", value, scale, *([zero] if zero else []), axis=None if one else axis))


def _qlinear_conv_as_float(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = inputs_of(node, 9)
    attributes = attributes_of(node)
    own = {name: attributes[name] for name in _OF_CONV if name in attributes}
    operands = [_dequantize(g, x, x_scale, x_zero), _dequantize(g, w, w_scale, w_zero, 0)]
    if bias:
        scale = np.asarray(g.value(x_scale)).reshape(-1) * np.asarray(g.value(w_scale)).reshape(-1)
        operands.append(_dequantize(g, bias, g.constant(scale.astype(np.float32)), "", 0))
    return [g.op("QuantizeLinear", g.op("Conv", *operands, **own), y_scale, y_zero)]


def _qlinear_conv(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = inputs_of(node, 9)
    if _is_centred(g, w, w_zero, x_scale, w_scale):
        return _qlinear_conv_as_float(g, node)
    w_shape = g.static_shape(node, 3)
    rank = len(w_shape)
    sums = _conv_sums(g, node, x, w, x_zero, w_zero, w_shape)
    if bias:
        sums = g.op("Add", sums, g.reshape(bias, -1, *[1] * (rank - 2)))
    scale = g.op("Div", g.op("Mul", x_scale, w_scale), y_scale)
    return [_requantised(g, g.cast(sums, np.float32), _along(g, scale, w_scale, 1, rank), y_zero, y_zero)]


def _qlinear_matmul(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs_of(node, 8)
    if (
        _is_centred(g, b, b_zero, a_scale, b_scale)
        and g.shape(a_scale) in ((), (1,))
        and g.dtype(a_scale) == np.float32
    ):
        rank = len(g.shape(b) or ())
        product = g.op("MatMul", _dequantize(g, a, a_scale, a_zero), _dequantize(g, b, b_scale, b_zero, rank - 1))
        return [g.op("QuantizeLinear", product, y_scale, y_zero)]
    shapes = g.static_shape(node), g.static_shape(node, 3)
    sums = g.cast(_matmul_sums(g, a, b, a_zero, b_zero, shapes), np.float32)
    left = _along(g, a_scale, a_scale, len(shapes[0]) - 2, len(shapes[0]))
    right = _along(g, b_scale, b_scale, len(shapes[1]) - 1, len(shapes[1]))
    for name in (a_scale, b_scale, y_scale):
        if g.dtype(name) != np.float32:
            raise refusal(node, f"scales of type {g.dtype(name)} are not supported")
    scale = g.op("Div", g.op("Mul", left, right), y_scale)
    return [_requantised(g, sums, scale, y_zero, y_zero)]


def _qgemm(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    a, a_scale, a_zero, b, b_scale, b_zero, bias, y_scale, y_zero = inputs_of(node, 9)
    attributes = attributes_of(node)
    a_shape, b_shape = g.static_shape(node), g.static_shape(node, 3)
    if attributes.get("transA", 0):
        a, a_shape = g.transpose(a, 1, 0), a_shape[::-1]
    if attributes.get("transB", 0):
        known = g.value(b)
        b = g.transpose(b, 1, 0) if known is None else g.constant(known.T.copy())
        b_shape = b_shape[::-1]
    sums = _matmul_sums(g, a, b, a_zero, b_zero, (a_shape, b_shape))
    if bias:
        sums = g.op("Add", sums, bias)
    scale = g.op("Mul", g.op("Mul", a_scale, b_scale), g.constant(attributes.get("alpha", 1.0), np.float32))
    if not y_scale:
        return [g.op("Mul", g.cast(sums, np.float32), scale)]
    like = y_zero or a_zero or node.input[0]
    return [_requantised(g, g.cast(sums, np.float32), g.op("Div", scale, y_scale), y_zero, like)]


def _dequantised(g: Builder, value: str, scale: str, zero: str) -> str:
    return str(g.op("Mul", _levels(g, value, zero), scale))


def _quantised(g: Builder, value: str, scale: str, zero: str, like: str) -> str:
    """round(value / scale) + zero, saturated to the type of `like`; an absent zero point is 0."""
    zero = zero or g.scalar(0, like)
    limits = np.iinfo(g.dtype(zero))
    level = g.op("Add", g.round(g.op("Div", value, scale)), g.cast(zero, np.float32))
    return g.cast(_clipped(g, level, limits.min, limits.max), g.dtype(zero))


def _binary(operator: str) -> Rewrite:
    def rewrite(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
        a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = inputs_of(node, 8)
        result = g.op(operator, _dequantised(g, a, a_scale, a_zero), _dequantised(g, b, b_scale, b_zero))
        return [_quantised(g, result, scale, zero, a_zero or a)]

    return rewrite


def _unary(operator: str, *attributes: str) -> Rewrite:
    """QLinear versions of operators on one tensor."""

    def rewrite(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
        x, x_scale, x_zero, scale, zero = inputs_of(node, 5)
        given = attributes_of(node)
        if given.get("channels_last", 0):
            raise refusal(node, "channels last are not supported")
        own: dict[str, Any] = {name: given.get(name) for name in attributes}
        result = g.op(operator, _dequantised(g, x, x_scale, x_zero), **own)
        return [_quantised(g, result, scale, zero, x_zero or x)]

    return rewrite


def _qlinear_concat(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    scale, zero, *rest = node.input
    parts = [_dequantised(g, *rest[i : i + 3]) for i in range(0, len(rest), 3)]
    return [_quantised(g, g.op("Concat", *parts, axis=attributes_of(node)["axis"]), scale, zero, rest[2] or rest[0])]


def _dynamic_quantize(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    level, scale, zero = _dynamic(g, node.input[0])
    return [g.cast(level, np.uint8), scale, g.cast(zero, np.uint8)]


def _dynamic(g: Builder, x: str) -> tuple[str, str, str]:
    """(levels as float32, scale, zero point as float32) of a tensor in 8 bits, zero being a level."""
    zero = g.constant(0.0, np.float32)
    low, high = (g.op(kind, x, keepdims=0) for kind in ("ReduceMin", "ReduceMax"))
    low, high = g.op("Min", low, zero), g.op("Max", high, zero)
    scale = g.op("Div", g.op("Sub", high, low), g.constant(255.0, np.float32))
    scale = g.op("Where", g.op("Equal", scale, zero), g.constant(1.0, np.float32), scale)
    offset = _clipped(g, g.round(g.op("Div", g.op("Sub", zero, low), scale)), 0, 255)
    level = _clipped(g, g.op("Add", g.round(g.op("Div", x, scale)), offset), 0, 255)
    return level, scale, offset


def _dynamic_quantize_matmul(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    a, b, b_scale, b_zero, bias = inputs_of(node, 5)
    level, scale, zero = _dynamic(g, a)
    b_shape = g.static_shape(node, 1)
    right = _levels(g, b, b_zero, len(b_shape) - 1, len(b_shape))
    product = g.op("MatMul", g.op("Sub", level, zero), right)
    result = g.op("Mul", product, g.op("Mul", scale, b_scale))
    return [g.op("Add", result, bias) if bias else result]


def _matmul_integer_to_float(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = inputs_of(node, 7)
    sums = _matmul_sums(g, a, b, a_zero, b_zero, (g.static_shape(node), g.static_shape(node, 1)))
    result = g.op("Mul", g.cast(sums, np.float32), g.op("Mul", a_scale, b_scale))
    return [g.op("Add", result, bias) if bias else result]


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

REWRITES: dict[tuple[str, str], Rewrite] = {
    ("", "ConvInteger"): _conv_integer,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize,
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_quantize_matmul,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_integer_to_float,
    (MICROSOFT, "QGemm"): _qgemm,
    (MICROSOFT, "QLinearAdd"): _binary("Add"),
    (MICROSOFT, "QLinearMul"): _binary("Mul"),
    (MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu", "alpha"),
    (MICROSOFT, "QLinearSoftmax"): _unary("Softmax", "axis"),
    (MICROSOFT, "QLinearAveragePool"): _unary("AveragePool", *_POOL),
    (MICROSOFT, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (MICROSOFT, "QLinearConcat"): _qlinear_concat,
}
