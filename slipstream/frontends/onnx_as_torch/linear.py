"""Matrix products."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import fx

from slipstream.frontends.onnx_as_torch.elementwise import literals
from slipstream.frontends.onnx_as_torch.op import Op, Value, meta, rank, shape


def matmul(op: Op) -> Value:
    a, b = op[0], op[1]
    if isinstance(b, torch.Tensor) and rank(b) == 2 and b.is_floating_point():
        return op.emit(F.linear, a, b.t())
    return op.emit(torch.matmul, a, b)


def add(op: Op) -> Value:
    """An addition; a constant row added to a matrix product becomes the bias of `F.linear`."""
    for product, bias in ((0, 1), (1, 0)):
        x, row = op[product], op[bias]
        is_linear = isinstance(x, fx.Node) and x.target is F.linear and len(x.args) == 2
        if is_linear and op.is_sole_user(product) and isinstance(row, torch.Tensor):
            vector = _bias(row, shape(x)[-1])
            if vector is not None and rank(row) <= rank(x):
                return op.emit(F.linear, *x.args, vector)
    return op.emit(operator.add, *literals(op[0], op[1]))


def gemm(op: Op) -> Value:
    alpha, beta = op.attr("alpha", 1.0), op.attr("beta", 1.0)
    a, b, c = op[0], op[1], op.get(2)
    if op.attr("transA", 0):
        a = op.emit(torch.t, a)
    if not op.attr("transB", 0):
        b = op.emit(torch.t, b)
    if alpha != 1.0:
        b = op.emit(operator.mul, b, alpha)
    if c is None or beta == 0.0:
        return op.emit(F.linear, a, b)
    if beta != 1.0:
        c = op.emit(operator.mul, c, beta)
    bias = _bias(c, shape(b)[0])
    if bias is not None:
        return op.emit(F.linear, a, b, bias)
    return op.emit(operator.add, op.emit(F.linear, a, b), c)


def _bias(value: Value, features: int) -> Value | None:
    """The value as the vector `F.linear` takes, if it has one number per feature."""
    if shape(value) == (features,):
        return value
    if isinstance(value, torch.Tensor) and meta(value).numel() == features and shape(value)[-1:] == (features,):
        return value.flatten()
    return None


def einsum(op: Op) -> Value:
    return op.emit(torch.einsum, op.attr("equation"), *op.inputs)
