"""Operators that slide a window over an image: convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from slipstream.frontends.onnx_as_torch.op import Op, Value, meta, rank, shape

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@dataclass(frozen=True)
class _Window:
    """A window's geometry, one number per spatial axis, with `auto_pad` resolved."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @classmethod
    def of(cls, op: Op, kernel: Sequence[int]) -> _Window:
        size, n = shape(op[0])[2:], len(kernel)
        stride, dilation = op.attr("strides", [1] * n), op.attr("dilations", [1] * n)
        pads = op.attr("pads", [0] * 2 * n)
        auto = op.attr("auto_pad", "NOTSET")
        if auto == "VALID":
            pads = [0] * 2 * n
        elif auto.startswith("SAME"):
            totals = [
                max((math.ceil(length / s) - 1) * s + (k - 1) * d + 1 - length, 0)
                for length, k, s, d in zip(size, kernel, stride, dilation, strict=True)
            ]
            pads = _halves(totals, more_at_end=auto == "SAME_UPPER")
        return cls(size, tuple(kernel), tuple(stride), tuple(dilation), tuple(pads[:n]), tuple(pads[n:]))

    def fits_pool(self) -> bool:
        """Whether torch's pools can pad by themselves: the same on both sides, by half a kernel at most."""
        return self.begin == self.end and all(2 * p <= k for p, k in zip(self.begin, self.kernel, strict=True))

    def overhang(self) -> tuple[int, ...]:
        """How far `ceil_mode` lets the last window reach over the padded end.

        A window that would start behind the image and its front padding is left out, as torch and ONNX agree.
        """
        result = []
        for length, k, s, d, before, after in zip(
            self.size, self.kernel, self.stride, self.dilation, self.begin, self.end, strict=True
        ):
            extent = (k - 1) * d + 1
            count = math.ceil((length + before + after - extent) / s) + 1
            if (count - 1) * s >= length + before:
                count -= 1
            result.append(max((count - 1) * s + extent - (length + before + after), 0))
        return tuple(result)


def _halves(totals: Sequence[int], *, more_at_end: bool) -> list[int]:
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if more_at_end else large + small


def _interleave(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    """Pads in the order of F.pad: last axis first."""
    return [pad for pair in zip(reversed(begin), reversed(end), strict=True) for pad in pair]


def _by_rank(op: Op, functions: dict[int, Callable[..., Any]]) -> Callable[..., Any]:
    n = rank(op[0]) - 2
    if n not in functions:
        raise op.unsupported(f"torch has no version for {n} spatial axes")
    return functions[n]


def conv(op: Op) -> Value:
    x, weight = op[0], op[1]
    window = _Window.of(op, shape(weight)[2:])
    padding = window.begin
    if window.begin != window.end:
        x = op.emit(F.pad, x, _interleave(window.begin, window.end))
        padding = (0,) * len(window.size)
    return op.emit(
        _by_rank(op, _CONV),
        x,
        weight,
        op.get(2),
        window.stride,
        padding,
        window.dilation,
        op.attr("group", 1),
    )


def conv_transpose(op: Op) -> Value:
    weight = op[1]
    window = _Window.of(op, shape(weight)[2:])
    if op.attr("output_shape") or op.attr("auto_pad", "NOTSET") != "NOTSET" or window.begin != window.end:
        raise op.unsupported("torch cuts both sides of the output alike")
    extra = op.attr("output_padding", [0] * len(window.kernel))
    settings = (window.stride, window.begin, extra, op.attr("group", 1), window.dilation)
    return op.emit(_by_rank(op, _CONV_TRANSPOSE), op[0], weight, op.get(2), *settings)


def max_pool(op: Op) -> Value:
    if op.is_used(1):
        raise op.unsupported("the second output, Indices, counts differently in torch")
    x = op[0]
    window = _Window.of(op, op.attr("kernel_shape"))
    padding, ceil_mode = window.begin, bool(op.attr("ceil_mode", 0))
    if not window.fits_pool():
        end = window.end
        if ceil_mode:
            end = tuple(sum(pair) for pair in zip(end, window.overhang(), strict=True))
        dtype = meta(x).dtype
        lowest = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
        x = op.emit(F.pad, x, _interleave(window.begin, end), value=lowest)
        padding, ceil_mode = (0,) * len(window.size), False
    return op.emit(
        _by_rank(op, _MAX_POOL),
        x,
        window.kernel,
        window.stride,
        padding,
        window.dilation,
        ceil_mode=ceil_mode,
    )


def average_pool(op: Op) -> Value:
    x, pool = op[0], _by_rank(op, _AVG_POOL)
    window = _Window.of(op, op.attr("kernel_shape"))
    if set(window.dilation) != {1}:
        raise op.unsupported("torch has no average pool with dilations")
    ceil_mode, include_pad = bool(op.attr("ceil_mode", 0)), bool(op.attr("count_include_pad", 0))
    if window.fits_pool():
        return op.emit(pool, x, window.kernel, window.stride, window.begin, ceil_mode, include_pad)
    # Pad first, average over full windows, then correct by the share of each window that counts.
    counted = torch.ones((1, 1, *window.size))
    pads = _interleave(window.begin, window.end)
    counted = F.pad(counted, pads, value=float(include_pad))
    x = op.emit(F.pad, x, pads)
    if ceil_mode and any(window.overhang()):
        over = _interleave([0] * len(window.size), window.overhang())
        counted, x = F.pad(counted, over), op.emit(F.pad, x, over)
    share = pool(counted, window.kernel, window.stride)
    y = op.emit(pool, x, window.kernel, window.stride)
    return y if bool((share == 1).all()) else op.emit(torch.mul, y, share.reciprocal().to(meta(y).dtype))


def _spatial(op: Op) -> list[int]:
    return list(range(2, rank(op[0])))


def global_average_pool(op: Op) -> Value:
    return op.emit(torch.mean, op[0], _spatial(op), keepdim=True)


def global_max_pool(op: Op) -> Value:
    return op.emit(torch.amax, op[0], _spatial(op), keepdim=True)
