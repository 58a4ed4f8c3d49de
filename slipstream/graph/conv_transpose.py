"""Rewrites a transposed 2-D convolution as an ordinary one, so that the same layouts and schedules apply.

Output pixel i is touched by input pixel j through kernel tap i + pad - stride * j. So the outputs of one phase
(i + pad) mod stride are a plain convolution with every stride-th tap, and all phases together are one
convolution with stride * stride times the channels whose results are interleaved like a pixel shuffle:

    taps t = ceil(kernel / stride),  W'[o, py, px, c, m, n] = W[c, o, py + stride * (t-1-m), px + stride * (t-1-n)]
    crop(interleave(conv(pad(x, t-1), W')))

No multiplication by an inserted zero remains (unless the stride does not divide the kernel).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

from slipstream.graph.relax_walk import with_main

Array = np.ndarray[Any, Any]


def rewrite_conv_transpose(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite every transposed 2-D convolution with constant weights in `main`."""
    data, weight = wildcard(), is_const()
    pattern = is_op("relax.nn.conv2d_transpose")(data, weight)

    def rewrite(original: Any, matched: Any) -> Any:
        call = matched[pattern]
        layouts = (call.attrs.data_layout, call.attrs.kernel_layout, call.attrs.out_layout)
        if layouts != ("NCHW", "IOHW", "NCHW"):
            return original
        return _as_convolution(call, matched[data], matched[weight].value.numpy())

    return relax.transform.Normalize()(with_main(mod, rewrite_call(pattern, rewrite, mod["main"])))


def _as_convolution(call: Any, x: Any, weight: Array) -> Any:
    groups = int(call.attrs.groups)
    strides, (top, left, *_) = _ints(call.attrs.strides), _ints(call.attrs.padding)
    batch, channels, *sizes = _ints(call.ty.shape)
    extents = _ints(x.ty.shape)[2:]
    kernel = _phases_as_channels(_dilate(weight, _ints(call.attrs.dilation)), strides, groups)

    # One position of the convolution makes `stride` outputs, the first `top` (`left`) of which are cropped.
    positions = [-(-(size + crop) // stride) for size, crop, stride in zip(sizes, (top, left), strides, strict=True)]
    after = [max(0, count - extent) for count, extent in zip(positions, extents, strict=True)]
    computed = [extent + more for extent, more in zip(extents, after, strict=True)]
    phases = relax.op.nn.conv2d(
        x,
        relax.const(kernel),
        padding=[kernel.shape[2] - 1, kernel.shape[3] - 1, *after],
        groups=groups,
        out_dtype=call.attrs.out_dtype,
    )
    phases = _cut(phases, computed, [0, 0], positions)
    apart = relax.op.reshape(phases, (batch, channels, *strides, *positions))
    woven = relax.op.permute_dims(apart, [0, 1, 4, 2, 5, 3])
    pixels = [count * stride for count, stride in zip(positions, strides, strict=True)]
    return _cut(relax.op.reshape(woven, (batch, channels, *pixels)), pixels, [top, left], sizes)


def _phases_as_channels(weight: Array, strides: list[int], groups: int) -> Array:
    """Inputs, outputs / groups, window -> outputs * phases, inputs / groups, taps, the taps reversed."""
    inputs, outputs, *window = weight.shape
    (down, right), (rows, columns) = strides, [-(-n // stride) for n, stride in zip(window, strides, strict=True)]
    whole = np.zeros((inputs, outputs, rows * down, columns * right), weight.dtype)
    whole[:, :, : window[0], : window[1]] = weight
    split = whole.reshape(groups, inputs // groups, outputs, rows, down, columns, right)
    kernel = split.transpose(0, 2, 4, 6, 1, 3, 5).reshape(-1, inputs // groups, rows, columns)
    return np.ascontiguousarray(kernel[:, :, ::-1, ::-1])


def _dilate(weight: Array, dilations: list[int]) -> Array:
    """The weight with zeros between its taps."""
    window = [(n - 1) * dilation + 1 for n, dilation in zip(weight.shape[2:], dilations, strict=True)]
    apart = np.zeros((*weight.shape[:2], *window), weight.dtype)
    apart[:, :, :: dilations[0], :: dilations[1]] = weight
    return apart


def _cut(x: Any, extents: list[int], begin: list[int], sizes: list[int]) -> Any:
    """`sizes` of the `extents` rows and columns, from `begin` on."""
    if extents == sizes:
        return x
    return relax.op.strided_slice(x, [2, 3], begin, [b + size for b, size in zip(begin, sizes, strict=True)])


def _ints(extents: Any) -> list[int]:
    return [int(extent) for extent in extents]
