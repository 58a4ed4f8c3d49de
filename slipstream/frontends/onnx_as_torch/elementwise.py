"""Operators that work element by element."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import fx

from slipstream.frontends.onnx_as_torch.op import Op, Translation, Value, meta, rank, shape, torch_dtype


def unary(function: Callable[..., Any]) -> Translation:
    return lambda op: op.emit(function, op[0])


def binary(function: Callable[..., Any]) -> Translation:
    return lambda op: op.emit(function, *literals(op[0], op[1]))


def variadic(function: Callable[..., Any]) -> Translation:
    def pair(op: Op, a: Value, b: Value) -> Value:
        return op.emit(function, *literals(a, b))

    return lambda op: functools.reduce(functools.partial(pair, op), _all_inputs(op))


def literals(a: Value, b: Value) -> tuple[Any, Any]:
    """The operands, a one-element constant replaced by the Python number a torch user would write."""

    def literal(value: Value, other: Value) -> Any:
        is_number = isinstance(value, torch.Tensor) and value.numel() == 1 and rank(value) <= rank(other)
        return value.item() if is_number and isinstance(other, fx.Node) else value

    return literal(a, b), literal(b, a)


def maximum(op: Op) -> Value:
    return _extremum(op, torch.maximum, "min")


def minimum(op: Op) -> Value:
    return _extremum(op, torch.minimum, "max")


def _extremum(op: Op, function: Callable[..., Any], bound: str) -> Value:
    def pair(a: Value, b: Value) -> Value:
        left, right = literals(a, b)
        if left is not a:
            return op.emit(torch.clamp, right, **{bound: left})
        if right is not b:
            return op.emit(torch.clamp, left, **{bound: right})
        return op.emit(function, a, b)

    return functools.reduce(pair, _all_inputs(op))


def _all_inputs(op: Op) -> list[Value]:
    return [op[index] for index in range(len(op.inputs))]


def mean(op: Op) -> Value:
    return op.emit(operator.truediv, variadic(operator.add)(op), len(op.inputs))


def div(op: Op) -> Value:
    if meta(op[0]).is_floating_point():
        return op.emit(operator.truediv, *literals(op[0], op[1]))
    return op.emit(torch.div, op[0], op[1], rounding_mode="trunc")


def power(op: Op) -> Value:
    result = op.emit(torch.pow, *literals(op[0], op[1]))
    wanted = meta(op[0]).dtype
    return result if meta(result).dtype == wanted else op.emit(torch.Tensor.to, result, wanted)


def cast(op: Op) -> Value:
    wanted = torch_dtype(op.attr("to"))
    return op[0] if meta(op[0]).dtype == wanted else op.emit(torch.Tensor.to, op[0], wanted)


def where(op: Op) -> Value:
    return op.emit(torch.where, op[0], *literals(op[1], op[2]))


def clip(op: Op) -> Value:
    low, high = op.number("min", 1), op.number("max", 2)
    return op[0] if low is None and high is None else op.emit(torch.clamp, op[0], min=low, max=high)


def leaky_relu(op: Op) -> Value:
    return op.emit(F.leaky_relu, op[0], op.attr("alpha", 0.01))


def elu(op: Op) -> Value:
    return op.emit(F.elu, op[0], op.attr("alpha", 1.0))


def gelu(op: Op) -> Value:
    return op.emit(F.gelu, op[0], approximate=op.attr("approximate", "none"))


def hard_sigmoid(op: Op) -> Value:
    alpha, beta = op.attr("alpha", 0.2), op.attr("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return op.emit(F.hardsigmoid, op[0])
    scaled = op.emit(operator.add, op.emit(operator.mul, op[0], alpha), beta)
    return op.emit(torch.clamp, scaled, min=0.0, max=1.0)


def prelu(op: Op) -> Value:
    x, slope = op[0], op[1]
    if meta(slope).numel() != 1 and shape(slope) != (shape(x)[1], *[1] * (rank(x) - 2)):
        raise op.unsupported("torch takes one slope for all or one for each channel")
    return op.emit(F.prelu, x, op.emit(torch.reshape, slope, [-1]))
