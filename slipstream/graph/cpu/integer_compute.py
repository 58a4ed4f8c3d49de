"""Computations of 8-bit numbers as TE functions, and their weights in the order in which dot products read them.

Convolutions and matmuls are those of other short types too: of `DotProduct.sum_type`, which decides how they add up.

Scales, zero points and limits are tensors, not numbers in the code, so that layers of the same shape are one operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from slipstream.machine.dot_product import DotProduct

# Added to a float of less than 2**22, it leaves the nearest integer, the even one of two, in the lowest bits.
_ROUNDS = 12582912.0
MOST_ROUNDED = 2.0**22

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Window:
    """How a 2-D convolution walks over its image; `padding` is (top, left, bottom, right)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int = 1

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the result for an image of this size, its border included."""
        axes = zip((height, width), self.kernel, self.strides, self.dilation, strict=True)
        rows, columns = ((size - (kernel - 1) * dilation - 1) // stride + 1 for size, kernel, stride, dilation in axes)
        return rows, columns


def pack_columns(weights: Array, dot: DotProduct) -> Array:
    """int8 weights of shape (columns, ..., depth) as (vectors, ..., groups, lanes, group), with zeros where one is not
    full."""
    columns, depth = weights.shape[0], weights.shape[-1]
    more = [(0, -columns % dot.lanes), *[(0, 0)] * (weights.ndim - 2), (0, -depth % dot.group)]
    whole = np.pad(weights, more)
    middle = whole.shape[1:-1]
    split = whole.reshape(-1, dot.lanes, *middle, whole.shape[-1] // dot.group, dot.group)
    return np.ascontiguousarray(np.moveaxis(split, 1, -2))


def rows_of_pixels(weights: Array, dot: DotProduct) -> Array:
    """Filters (filters, height, width, channels) with the channels of neighbouring pixels as one axis: a whole number
    of groups of it has fewer zeros than one of each pixel's few channels."""
    filters, height, width, channels = weights.shape
    flat = weights.reshape(filters, height, 1, width * channels)
    return np.pad(flat, [(0, 0)] * 3 + [(0, -flat.shape[-1] % (2 * dot.group))])


def convolution(data: Any, weights: Any, zero: Any, window: Window, dot: DotProduct) -> Any:
    """Sums of products of an image in NHWC and packed filters; the border of the image is what `zero` has or, without
    it, 0."""
    batch, height, width, channels = (int(extent) for extent in data.shape)
    (top, left, bottom, right), (kernel_y, kernel_x) = window.padding, window.kernel
    (stride_y, stride_x), (dilation_y, dilation_x) = window.strides, window.dilation
    high, wide = height + top + bottom, width + left + right
    rows, columns = window.outputs(high, wide)
    packed = [int(extent) for extent in weights.shape]
    depth, filters = packed[3] * dot.group, packed[0] * dot.lanes
    in_rows = packed[2] != kernel_x
    own = channels // window.groups
    deeper = depth != own and not in_rows
    of_group = filters // window.groups

    def inside(n: Any, y: Any, x: Any, c: Any) -> Any:
        conditions = []
        if top or bottom:
            conditions += [y >= top, y < top + height]
        if left or right or in_rows:
            conditions += [x >= left, x < left + width]
        if deeper:
            conditions.append(c < channels)
        outside = tirx.const(0, data.dtype) if zero is None else zero[0]
        return tirx.if_then_else(tirx.all(*conditions), data[n, y - top, x - left, c], outside)

    if in_rows:
        length = (columns - 1) * stride_x * channels + depth
        image = te.compute(
            (batch, high, length), lambda n, y, j: inside(n, y, j // channels, j % channels), name="border"
        )
    elif any(window.padding) or deeper:
        image = te.compute((batch, high, wide, depth if deeper else channels), inside, name="border")
    else:
        image = data
    y_axis = te.reduce_axis((0, kernel_y), name="ky")
    x_axis = te.reduce_axis((0, packed[2]), name="kx")
    c_axis = te.reduce_axis((0, depth), name="c")

    def product(n: Any, y: Any, x: Any, f: Any) -> Any:
        row = y * stride_y + y_axis * dilation_y
        if in_rows:
            value = image[n, row, x * (stride_x * channels) + c_axis]
        else:
            first = f // of_group * own if window.groups > 1 else 0
            value = image[n, row, x * stride_x + x_axis * dilation_x, first + c_axis]
        weight = weights[f // dot.lanes, y_axis, x_axis, c_axis // dot.group, f % dot.lanes, c_axis % dot.group]
        return te.sum(_product(value, weight, dot), axis=[y_axis, x_axis, c_axis])

    return te.compute((batch, rows, columns, filters), product, name=_name("conv2d", dot))


def _product(value: Any, weight: Any, dot: DotProduct) -> Any:
    return value.astype(dot.sum_type) * weight.astype(dot.sum_type)


def _name(kind: str, dot: DotProduct) -> str:
    return f"integer_{kind}" if dot.sum_type == "int32" else kind


def depthwise(data: Any, weights: Any, zero: Any, window: Window) -> Any:
    """Sums of a depthwise convolution of an image in NHWC, weights (height, width, channels) being whole numbers.

    In float32, which is exact for so few products and faster than integers: no instruction adds up 8-bit products of
    separate channels.
    """
    batch, height, width, channels = (int(extent) for extent in data.shape)
    (top, left, bottom, right), (kernel_y, kernel_x) = window.padding, window.kernel
    (stride_y, stride_x), (dilation_y, dilation_x) = window.strides, window.dilation
    high, wide = height + top + bottom, width + left + right
    rows, columns = window.outputs(high, wide)

    def level(n: Any, y: Any, x: Any, c: Any) -> Any:
        value = data[n, y - top, x - left, c].astype("float32")
        conditions = []
        if top or bottom:
            conditions += [y >= top, y < top + height]
        if left or right:
            conditions += [x >= left, x < left + width]
        return tirx.if_then_else(tirx.all(*conditions), value, zero[0].astype("float32")) if conditions else value

    image = te.compute((batch, high, wide, channels), level, name="border")
    y_axis, x_axis = te.reduce_axis((0, kernel_y), name="ky"), te.reduce_axis((0, kernel_x), name="kx")

    def product(n: Any, y: Any, x: Any, c: Any) -> Any:
        value = image[n, y * stride_y + y_axis * dilation_y, x * stride_x + x_axis * dilation_x, c]
        return te.sum(value * weights[y_axis, x_axis, c], axis=[y_axis, x_axis])

    return te.compute((batch, rows, columns, channels), product, name="integer_depthwise_conv2d")


def pack_channels(weights: Array, dot: DotProduct) -> Array:
    """int8 weights (height, width, channels) of a depthwise convolution as (vectors, height, width, lanes, group), all
    zero but those of the lane's own channel."""
    height, width, channels = weights.shape
    chosen = np.eye(dot.group, dtype=np.int8)[np.arange(channels) % dot.group]
    spread = (weights[..., None] * chosen).astype(np.int8)
    split = spread.reshape(height, width, channels // dot.lanes, dot.lanes, dot.group)
    return np.ascontiguousarray(split.transpose(2, 0, 1, 3, 4))


def depthwise_in_groups(data: Any, weights: Any, zero: Any, window: Window, dot: DotProduct) -> Any:
    """The same in integers, with `pack_channels`' weights: each channel's sum reads its neighbours too, times zero."""
    image, shape, place = _bordered(data, zero, window)
    axes = [te.reduce_axis((0, extent), name=name) for extent, name in zip(window.kernel, ("ky", "kx"), strict=True)]
    k = te.reduce_axis((0, dot.group), name="c")

    def product(n: Any, y: Any, x: Any, c: Any) -> Any:
        value = image[(n, *place(y, x, *axes), c // dot.group * dot.group + k)]
        weight = weights[c // dot.lanes, axes[0], axes[1], c % dot.lanes, k]
        return te.sum(value.astype("int32") * weight.astype("int32"), axis=[*axes, k])

    return te.compute(shape, product, name="integer_depthwise_conv2d")


def _bordered(data: Any, zero: Any, window: Window) -> tuple[Any, tuple[int, ...], Any]:
    """The image with its border, the shape of the result, and where in the image a tap of an output is."""
    batch, height, width, channels = (int(extent) for extent in data.shape)
    top, left, bottom, right = window.padding
    (stride_y, stride_x), (dilation_y, dilation_x) = window.strides, window.dilation
    high, wide = height + top + bottom, width + left + right
    rows, columns = window.outputs(high, wide)

    def level(n: Any, y: Any, x: Any, c: Any) -> Any:
        inside = [y >= top, y < top + height, x >= left, x < left + width]
        return tirx.if_then_else(tirx.all(*inside), data[n, y - top, x - left, c], zero[0])

    def place(y: Any, x: Any, tap_y: Any, tap_x: Any) -> tuple[Any, Any]:
        return y * stride_y + tap_y * dilation_y, x * stride_x + tap_x * dilation_x

    image = te.compute((batch, high, wide, channels), level, name="border") if any(window.padding) else data
    return image, (batch, rows, columns, channels), place


def packed(data: Any, dot: DotProduct) -> Any:
    """`pack_columns` of the last two axes at run time, as int8; nothing is added to fill vectors."""
    *batch, length, columns = (int(extent) for extent in data.shape)
    shift = int(np.iinfo(np.int8).min) - int(np.iinfo(str(data.dtype)).min)

    def weight(*at: Any) -> Any:
        *of_batch, vector, step, lane, place = at
        value = data[(*of_batch, step * dot.group + place, vector * dot.lanes + lane)]
        return (value.astype("int32") + shift).astype("int8") if shift else value

    shape = (*batch, columns // dot.lanes, length // dot.group, dot.lanes, dot.group)
    return te.compute(shape, weight, name="packed")


def sums_of_rows(data: Any) -> Any:
    """The sum over the last axis, as int32."""
    k = te.reduce_axis((0, data.shape[-1]), name="k")
    return te.compute(data.shape[:-1], lambda *at: te.sum(data[(*at, k)].astype("int32"), axis=k), name="of_rows")


def sums_of_columns(weights: Any) -> Any:
    """The sums of packed columns, as int32."""
    *batch, vectors, steps, lanes, group = weights.shape
    step, place = te.reduce_axis((0, steps), name="step"), te.reduce_axis((0, group), name="place")

    def total(*at: Any) -> Any:
        *of_batch, column = at
        value = weights[(*of_batch, column // lanes, step, column % lanes, place)]
        return te.sum(value.astype("int32"), axis=[step, place])

    return te.compute((*batch, vectors * lanes), total, name="of_columns")


def scaled_with_both(sums: Any, of_rows: Any, of_columns: Any, zeros: Any, scale: Any) -> Any:
    """Sums of products of two tensors, less what their zero points add, in float32."""

    def value(*at: Any) -> Any:
        *batch, row, column = at
        less = zeros[0] * of_columns[(*batch, column)] + zeros[1] * of_rows[(*batch, row)]
        return (sums[at] - less + zeros[2]).astype("float32") * scale[0]

    return te.compute(sums.shape, value, name="scaled")


def matmul(data: Any, weights: Any, dot: DotProduct) -> Any:
    """Sums of products of the last axis of `data` and packed columns, which may differ along its first axes."""
    *outer, length = data.shape
    *batch, vectors, steps, _, _ = weights.shape
    depth, columns = int(steps) * dot.group, int(vectors) * dot.lanes
    if depth != int(length):
        given = data
        data = te.compute(
            (*outer, depth),
            lambda *at: tirx.if_then_else(at[-1] < length, given[at], tirx.const(0, given.dtype)),
            name="border",
        )
    k = te.reduce_axis((0, depth), name="k")

    def product(*at: Any) -> Any:
        own = at[: len(batch)]
        weight = weights[(*own, at[-1] // dot.lanes, k // dot.group, at[-1] % dot.lanes, k % dot.group)]
        return te.sum(_product(data[(*at[:-1], k)], weight, dot), axis=k)

    return te.compute((*outer, columns), product, name=_name("matmul", dot))


def scaled(sums: Any, offset: Any, scale: Any, columns: int) -> Any:
    """(sums + offset) * scale in float32, with one offset and scale for each of the first `columns`, which are kept."""
    return te.compute(
        (*sums.shape[:-1], columns),
        lambda *at: (sums[at] + offset[at[-1]]).astype("float32") * scale[at[-1]],
        name="scaled",
    )


def scaled_with_zero(sums: Any, weights: Any, scale: Any, zero: Any, columns: int) -> Any:
    """(sums - zero * weights) * scale in float32: `weights` are sums of each column's, `zero` is known at run time."""

    def value(*at: Any) -> Any:
        of_zero = zero[(0,) * len(zero.shape)].astype("int32") * weights[at[-1]]
        return (sums[at] - of_zero).astype("float32") * scale[at[-1]]

    return te.compute((*sums.shape[:-1], columns), value, name="scaled")


def requantised(sums: Any, offset: Any, scale: Any, limits: Any, zero: Any, columns: int) -> Any:
    """The same, rounded to the type of `zero`; `limits` are the least and the largest level less `zero`.

    Limits in int32 are for sums that are less than `MOST_ROUNDED` when scaled: these may be limited after rounding,
    which takes half the instructions.
    """

    def level(*at: Any) -> Any:
        value = (sums[at] + offset[at[-1]]).astype("float32") * scale[at[-1]]
        return _level(value, limits, zero)

    return te.compute((*sums.shape[:-1], columns), level, name="requantised")


def quantised(data: Any, scale: Any, limits: Any, zero: Any) -> Any:
    """data * scale, rounded to the type of `zero`, half to even, and saturated."""
    return te.compute(data.shape, lambda *at: _level(data[at] * scale[0], limits, zero), name="quantised")


def looked_up(data: Any, table: Any) -> Any:
    """The value of each level of `data` in a table of them, the least first."""
    least = int(np.iinfo(str(data.dtype)).min)
    return te.compute(data.shape, lambda *at: table[data[at].astype("int32") - least], name="looked_up")


def dequantised(data: Any, scale: Any, zero: Any) -> Any:
    """(data - zero) * scale in float32."""
    return te.compute(
        data.shape,
        lambda *at: (data[at].astype("int32") - zero[0].astype("int32")).astype("float32") * scale[0],
        name="dequantised",
    )


def rounded_limits(low: float, high: float) -> Array:
    """Limits in int32, as the bits that rounding leaves."""
    bits = int(np.array(_ROUNDS, np.float32).view(np.int32))
    return np.array([bits + round(low), bits + round(high)], np.int32)


def _level(value: Any, limits: Any, zero: Any) -> Any:
    after = str(limits.dtype) == "int32"
    near = value if after else tirx.min(tirx.max(value, limits[0]), limits[1])
    bits = tirx.reinterpret("int32", near + tirx.const(_ROUNDS, "float32"))
    if after:
        bits = tirx.min(tirx.max(bits, limits[0]), limits[1])
    return (bits + zero[0].astype("int32")).astype(zero.dtype)
