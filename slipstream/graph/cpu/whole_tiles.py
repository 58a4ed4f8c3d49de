"""Convolutions whose filters or columns fill no register tiles compute a few more, which are cut off again.

A vector of 16 lanes divides neither 1,000 classes nor 24 channels, and no useful number of accumulators a row of 17
pixels: tiles, which must divide the extents, would be of 8 lanes, or of 17 pixels and one vector. The weights are
padded with filters of zeros at compile time, the image with columns of zeros, where it gets its border. The block after
the convolution reads only the original results.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.cpu.register_tile import time_of_row
from slipstream.graph.extents import are_known
from slipstream.graph.relax_walk import rewritten
from slipstream.machine.target import Target

_CONVOLUTION = tvm.ir.Op.get("relax.nn.conv2d")
# The least reduction of instructions for which filters are padded.
_LEAST_GAIN = 1.5
# A register tile has several vectors beside each other: so many at best, if that costs little more than whole vectors.
_VECTORS_IN_A_TILE = (4, 2)
_LITTLE_MORE = 1.05
# Columns are added if the estimate falls to this share of it, up to this share of columns.
_WORTH_COLUMNS = 0.96
_MOST_COLUMNS = 0.25
# Copying an element of an image that needs no border otherwise takes as long as so many multiply-adds.
_COPY = 40


def fill_tiles(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Give convolutions in NHWC whole vectors of filters and rows that tiles divide, where that saves time; not for a
    GPU."""
    if target.gpu is not None:
        return mod
    return rewritten(mod, _Filler(mod, target))


def whole_vectors(filters: int, lanes: int) -> int:
    """How many filters to compute instead of `filters`: the same number where more would not be faster."""
    width = math.gcd(filters, lanes)
    vectors = math.ceil(filters / lanes)
    if filters < width * vectors * _LEAST_GAIN:
        return filters
    for group in _VECTORS_IN_A_TILE:
        grouped = math.ceil(vectors / group) * group
        if grouped <= vectors * _LITTLE_MORE:
            return grouped * lanes
    return vectors * lanes


def whole_rows(columns: int, filters: int, target: Target) -> tuple[int, float]:
    """How many columns to compute instead of `columns`, and the share of the time that this is estimated to save."""
    wider = range(columns + 1, columns + 1 + int(columns * _MOST_COLUMNS))
    if not wider:
        return columns, 0.0
    now, times = time_of_row(columns, filters, target), {n: time_of_row(n, filters, target) for n in wider}
    best = min(times, key=lambda n: times[n])
    return (best, 1 - times[best] / now) if times[best] <= now * _WORTH_COLUMNS else (columns, 0.0)


@mutator
class _Filler(PyExprMutator):  # type: ignore[misc]
    """Replaces each such convolution by one of more results and a function that cuts them off."""

    def __init__(self, mod: tvm.IRModule, target: Target) -> None:
        super().__init__(mod)
        self._target = target

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op != _CONVOLUTION or int(call.attrs.groups) != 1 or not is_plain(call):
            return call
        columns, filters = int(call.ty.shape[2]), int(call.ty.shape[3])
        more = whole_vectors(filters, self._target.vector_elements) - filters
        wider = _columns_worth(call, filters + more, self._target) - columns
        if more == wider == 0:
            return call
        data, weight = call.args
        if more:
            weight = relax.op.nn.pad(weight, [0, more] + [0] * 6)
        whole = self.builder_.emit(_convolution(call, data, weight, wider))
        return self.builder_.call_te(_crop, whole, columns, filters, primfunc_name_hint="crop")


def is_plain(call: Any) -> bool:
    """Whether a convolution is in NHWC, of shapes that are known before the run."""
    attributes = call.attrs
    layouts = attributes.data_layout, attributes.kernel_layout, attributes.out_layout
    shapes = [tensor.ty.shape for tensor in (*call.args, call)]
    return layouts == ("NHWC", "OHWI", "NHWC") and all(isinstance(s, relax.ShapeExpr) and are_known(s) for s in shapes)


def _columns_worth(call: Any, filters: int, target: Target) -> int:
    """How many columns to compute: Winograd's method has tiles of its own, and an image may have to be copied first."""
    image, weight, results = (list(map(int, tensor.ty.shape)) for tensor in (*call.args, call))
    batch, height, columns, _ = results
    if weight[1:3] == [3, 3] and list(map(int, call.attrs.strides)) == [1, 1]:
        return columns
    wider, saved = whole_rows(columns, filters, target)
    products = batch * height * columns * filters * math.prod(weight[1:])
    has_border = any(map(int, call.attrs.padding))
    return wider if has_border or saved * products > _COPY * math.prod(image) else columns


def _convolution(call: Any, data: Any, weight: Any, wider: int) -> Any:
    """The convolution with other weights, and so many columns more to the right."""
    attributes = call.attrs
    top, left, bottom, right = map(int, attributes.padding)
    return relax.op.nn.conv2d(
        data,
        weight,
        strides=list(attributes.strides),
        padding=(top, left, bottom, right + wider * int(attributes.strides[1])),
        dilation=list(attributes.dilation),
        groups=1,
        data_layout="NHWC",
        kernel_layout="OHWI",
        out_layout="NHWC",
        out_dtype=attributes.out_dtype,
    )


def _crop(whole: Any, columns: int, filters: int) -> Any:
    """The first results of each row and pixel: element by element, so that TVM fuses it with the convolution."""
    return te.compute((*whole.shape[:2], columns, filters), lambda n, y, x, f: whole[n, y, x, f], name="crop")
