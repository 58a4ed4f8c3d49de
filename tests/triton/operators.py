"""Fused functions in half precision, as preparation makes them, for the templates' tests."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx, topi

HALF, FLOAT = "float16", "float32"


def convolution(size: int, channels: int, filters: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> Any:
    """A convolution in NHWC with a bias, a residual and SiLU."""
    data = te.placeholder((1, size, size, channels), HALF, name="data")
    weight = te.placeholder((filters, kernel, kernel, channels), HALF, name="weight")
    bias = te.placeholder((1, 1, 1, filters), HALF, name="bias")
    padded = topi.nn.pad(data, [0, pad, pad, 0], [0, pad, pad, 0], name="padded")
    out = (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    y, x, c = (te.reduce_axis((0, n), name) for n, name in ((kernel, "ry"), (kernel, "rx"), (channels, "rc")))
    sums = te.compute(
        (1, out, out, filters),
        lambda n, h, w, f: te.sum(
            padded[n, h * stride + y * dilation, w * stride + x * dilation, c].astype(FLOAT)
            * weight[f, y, x, c].astype(FLOAT),
            axis=[y, x, c],
        ),
        name="conv",
    )
    residual = te.placeholder((1, out, out, filters), HALF, name="residual")
    added = topi.add(topi.add(topi.cast(sums, HALF), bias), residual)
    result = topi.cast(topi.multiply(topi.cast(added, FLOAT), topi.sigmoid(topi.cast(added, FLOAT))), HALF)
    return _function([data, weight, bias, residual, result])


def matmul(rows: int, terms: int, columns: int, *, heads: int = 1) -> Any:
    """A product with a bias and GELU, its result split into heads and transposed."""
    left = te.placeholder((rows, terms), HALF, name="left")
    right = te.placeholder((terms, columns), HALF, name="right")
    bias = te.placeholder((columns,), FLOAT, name="bias")
    k = te.reduce_axis((0, terms), "k")
    sums = te.compute(
        (rows, columns),
        lambda i, j: te.sum(left[i, k].astype(FLOAT) * right[k, j].astype(FLOAT), axis=k),
        name="matmul",
    )
    added = te.compute((rows, columns), lambda i, j: sums[i, j] + bias[j], name="added")
    curved = te.compute(
        (rows, columns), lambda i, j: added[i, j] * 0.5 * (1.0 + te.erf(added[i, j] * 0.70710678)), name="gelu"
    )
    each = columns // heads
    result = te.compute((heads, rows, each), lambda h, i, j: curved[i, h * each + j].astype(HALF), name="heads")
    return _function([left, right, bias, result])


def batched(batch: int, rows: int, terms: int, columns: int) -> Any:
    """A product for each of a batch, one factor read transposed."""
    left = te.placeholder((batch, rows, terms), HALF, name="left")
    right = te.placeholder((batch, columns, terms), HALF, name="right")
    turned = te.compute((batch, terms, columns), lambda b, k, j: right[b, j, k], name="turned")
    k = te.reduce_axis((0, terms), "k")
    sums = te.compute(
        (batch, rows, columns),
        lambda b, i, j: te.sum(left[b, i, k].astype(FLOAT) * turned[b, k, j].astype(FLOAT), axis=k),
        name="matmul",
    )
    result = te.compute((batch, rows, columns), lambda b, i, j: sums[b, i, j] * 0.125, name="scaled")
    return _function([left, right, result])


def depthwise(size: int, channels: int) -> Any:
    data = te.placeholder((1, size + 2, size + 2, channels), HALF, name="data")
    weight = te.placeholder((3, 3, channels), HALF, name="weight")
    y, x = te.reduce_axis((0, 3), "ry"), te.reduce_axis((0, 3), "rx")
    sums = te.compute(
        (1, size, size, channels),
        lambda n, h, w, c: te.sum(data[n, h + y, w + x, c].astype(FLOAT) * weight[y, x, c].astype(FLOAT), axis=[y, x]),
        name="depthwise",
    )
    return _function([data, weight, sums])


def _function(tensors: list[Any]) -> tirx.PrimFunc:
    return tvm.IRModule({"main": te.create_prim_func(tensors)})["main"]


CASES = {
    "conv 5x5 / 2": convolution(9, 3, 20, 5, 2, 2),
    "conv 3x3, dilated": convolution(6, 32, 16, 3, 1, 2, dilation=2),
    "matmul": matmul(33, 80, 48, heads=3),
    "batched": batched(3, 20, 64, 28),
}


def softmax() -> Any:
    data = te.placeholder((2, 5, 37), HALF, name="data")
    return _function([data, topi.cast(topi.nn.softmax(topi.cast(data, FLOAT), axis=-1), HALF)])


def layer_norm() -> Any:
    data = te.placeholder((1, 11, 48), HALF, name="data")
    scale, shift = (te.placeholder((48,), FLOAT, name=name) for name in ("scale", "shift"))
    normal = topi.nn.layer_norm(topi.cast(data, FLOAT), scale, shift, [2], 1e-5)
    return _function([data, scale, shift, topi.cast(normal, HALF)])


def pool() -> Any:
    data = te.placeholder((1, 5, 5, 24), HALF, name="data")
    return _function([data, topi.nn.pool2d(data, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max", layout="NHWC")])


def mean() -> Any:
    data = te.placeholder((1, 7, 7, 40), HALF, name="data")
    total = topi.sum(topi.cast(data, FLOAT), axis=[1, 2])
    return _function([data, te.compute((1, 40), lambda i, j: (total[i, j] / 49.0).astype(HALF), name="mean")])


REDUCTIONS = {
    "softmax": softmax(),
    "layer_norm": layer_norm(),
    "pool": pool(),
    "mean": mean(),
    "one row": matmul(1, 96, 40),
    "depthwise": depthwise(4, 24),
}
