"""Resize and its forerunner Upsample, nearest and linear."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from slipstream.frontends.onnx_as_torch.op import Op, Value, meta, rank, shape, tensor_of

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
_ROUND: dict[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


@dataclass(frozen=True)
class _Axis:
    """One resized axis: old and new length, and new length over old as the model states it."""

    index: int
    old: int
    new: int
    scale: float

    def sources(self, op: Op) -> np.ndarray[Any, Any]:
        """Where in the old axis each new element lies."""
        x = np.arange(self.new, dtype=np.float64)
        mode = _coordinates(op)
        if mode == "asymmetric":
            return x / self.scale
        if mode == "align_corners":
            return x * (self.old - 1) / (self.new - 1) if self.new > 1 else np.zeros(1)
        if mode == "pytorch_half_pixel" and self.new == 1:
            return np.zeros(1)
        if mode in ("half_pixel", "pytorch_half_pixel"):
            return (x + 0.5) / self.scale - 0.5
        raise op.unsupported(f"coordinate_transformation_mode {mode}")

    def is_torch_nearest(self, indices: np.ndarray[Any, Any]) -> bool:
        step = np.float32(self.old) / np.float32(self.new)
        return np.array_equal(indices, np.floor(np.arange(self.new, dtype=np.float32) * step))


def _coordinates(op: Op) -> str:
    return str(op.attr("coordinate_transformation_mode", "half_pixel" if op.opset >= 11 else "asymmetric"))


def resize(op: Op) -> Value:
    """Resize by torch's own interpolation where it computes the same, else by constant indices per axis."""
    mode = op.attr("mode", "nearest")
    if mode not in ("nearest", "linear") or op.attr("antialias", 0):
        raise op.unsupported(f"mode {mode}{' with antialias' if op.attr('antialias', 0) else ''}")
    axes = [axis for axis in _axes(op) if (axis.old, axis.scale) != (axis.new, 1.0)]
    if not axes:
        return op[0]
    return _nearest(op, axes) if mode == "nearest" else _linear(op, axes)


def _axes(op: Op) -> list[_Axis]:
    size = shape(op[0])
    indices = [index % len(size) for index in op.attr("axes", range(len(size)))]
    if op.opset >= 11:
        scales, sizes = op.const(2), op.ints("sizes", 3)
    else:
        scales, sizes = op.const(1), None
        if op.attr("scales") is not None:
            scales = torch.tensor(op.attr("scales"))
    if sizes:
        if op.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise op.unsupported("keep_aspect_ratio_policy is not translated")
        return [_Axis(i, size[i], new, new / size[i]) for i, new in zip(indices, sizes, strict=True)]
    if scales is None:
        raise op.unsupported("neither scales nor sizes are given")
    return [
        _Axis(i, size[i], math.floor(size[i] * scale), scale) for i, scale in zip(indices, scales.tolist(), strict=True)
    ]


def _fits_torch(op: Op, axes: list[_Axis]) -> bool:
    return rank(op[0]) in _LINEAR and all(axis.index >= 2 for axis in axes)


def _new_size(op: Op, axes: list[_Axis]) -> list[int]:
    size = list(shape(op[0]))
    for axis in axes:
        size[axis.index] = axis.new
    return size[2:]


def _rounding(op: Op, axis: _Axis) -> str:
    if op.opset >= 11:
        return str(op.attr("nearest_mode", "round_prefer_floor"))
    # Opset 10 leaves it open; this is what ONNX Runtime, and so every such model's author, computes.
    return "ceil" if axis.scale < 1 else "floor"


def _nearest(op: Op, axes: list[_Axis]) -> Value:
    picks = [np.clip(_ROUND[_rounding(op, axis)](axis.sources(op)), 0, axis.old - 1).astype(np.int64) for axis in axes]
    pairs = list(zip(axes, picks, strict=True))
    if _fits_torch(op, axes) and all(axis.is_torch_nearest(pick) for axis, pick in pairs):
        return op.emit(F.interpolate, op[0], size=_new_size(op, axes), mode="nearest")
    x = op[0]
    for axis, pick in pairs:
        x = op.emit(torch.index_select, x, axis.index, tensor_of(pick))
    return x


def _linear(op: Op, axes: list[_Axis]) -> Value:
    x, mode = op[0], _coordinates(op)
    exact = all(axis.scale * axis.old == axis.new for axis in axes)
    like_torch = mode == "half_pixel" or (mode == "pytorch_half_pixel" and all(axis.new > 1 for axis in axes))
    if _fits_torch(op, axes) and (mode == "align_corners" or (like_torch and exact)):
        return op.emit(
            F.interpolate,
            x,
            size=_new_size(op, axes),
            mode=_LINEAR[rank(x)],
            align_corners=mode == "align_corners",
        )
    for axis in axes:
        source = np.clip(axis.sources(op), 0, axis.old - 1)
        low = np.floor(source).astype(np.int64)
        high = np.minimum(low + 1, axis.old - 1)
        weight = (source - low).reshape([-1] + [1] * (rank(x) - 1 - axis.index))
        x = op.emit(
            torch.lerp,
            op.emit(torch.index_select, x, axis.index, tensor_of(low)),
            op.emit(torch.index_select, x, axis.index, tensor_of(high)),
            tensor_of(weight).to(meta(x).dtype),
        )
    return x
