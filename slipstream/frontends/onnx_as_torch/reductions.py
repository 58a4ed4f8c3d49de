"""Operators over whole axes: norms, softmax, reductions, searches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from slipstream.frontends.onnx_as_torch.op import Op, Translation, Value, rank, shape


def batch_norm(op: Op) -> Value:
    if op.attr("training_mode", 0) or not op.attr("spatial", 1):
        raise op.unsupported("only inference with statistics per channel is translated")
    scale, bias, mean, var = op[1], op[2], op[3], op[4]
    return op.emit(F.batch_norm, op[0], mean, var, scale, bias, eps=op.attr("epsilon", 1e-5))


def instance_norm(op: Op) -> Value:
    return op.emit(F.instance_norm, op[0], weight=op[1], bias=op[2], eps=op.attr("epsilon", 1e-5))


def layer_norm(op: Op) -> Value:
    if op.is_used(1) or op.is_used(2):
        raise op.unsupported("torch does not return the mean and deviation")
    x, bias = op[0], op.get(2)
    size = shape(x)[op.axis(-1) :]

    def whole(value: Value) -> Value:
        return value if shape(value) == size else op.emit(torch.broadcast_to, value, size)

    scale, bias = whole(op[1]), None if bias is None else whole(bias)
    return op.emit(F.layer_norm, x, size, scale, bias, op.attr("epsilon", 1e-5))


def local_response_norm(op: Op) -> Value:
    size = op.attr("size")
    if size % 2 == 0:
        raise op.unsupported("torch centres an even window differently")
    return op.emit(
        F.local_response_norm,
        op[0],
        size,
        op.attr("alpha", 1e-4),
        op.attr("beta", 0.75),
        op.attr("bias", 1.0),
    )


def softmax(function: Callable[..., Any]) -> Translation:
    def translate(op: Op) -> Value:
        x = op[0]
        axis = op.axis(-1 if op.opset >= 13 else 1)
        if op.opset >= 13 or math.prod(shape(x)[axis + 1 :]) == 1:
            return op.emit(function, x, dim=axis)
        # Before opset 13 the axes from `axis` on are one long row.
        rows = op.emit(torch.flatten, x, axis)
        return op.emit(torch.reshape, op.emit(function, rows, dim=axis), shape(x))

    return translate


def reduce(function: Callable[..., Any]) -> Translation:
    """A reduction by a torch function that takes a list of axes."""

    def translate(op: Op) -> Value:
        axes = _reduced_axes(op)
        return op.emit(function, op[0], dim=axes, keepdim=bool(op.attr("keepdims", 1))) if axes else op[0]

    return translate


def reduce_l2(op: Op) -> Value:
    return reduce(torch.linalg.vector_norm)(op) if _reduced_axes(op) else op.emit(torch.abs, op[0])


def _reduced_axes(op: Op) -> list[int]:
    axes, n = op.ints("axes", 1), rank(op[0])
    if axes:
        return [axis % n for axis in axes]
    return [] if op.attr("noop_with_empty_axes", 0) else list(range(n))


def arg(function: Callable[..., Any]) -> Translation:
    def translate(op: Op) -> Value:
        if op.attr("select_last_index", 0):
            raise op.unsupported("torch finds the first of equal elements")
        return op.emit(function, op[0], dim=op.axis(0), keepdim=bool(op.attr("keepdims", 1)))

    return translate
