"""Resize where `F.interpolate` computes the same: nearest by whole factors, and linear."""

from __future__ import annotations

import math

import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from slipstream.frontends.onnx_as_torch.op import Op, Value, rank, shape

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
# (coordinates, rounding) that pick the same element if every factor is whole.
_NEAREST = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")}


def resize(op: Op) -> Value:
    mode, coordinates = op.attr("mode", "nearest"), op.attr("coordinate_transformation_mode", "half_pixel")
    old, new = shape(op[0]), _new_shape(op)
    if rank(op[0]) not in _LINEAR or old[:2] != tuple(new[:2]) or op.opset < 11:
        raise op.unsupported("only the spatial axes of an image are resized, from opset 11 on")
    whole = all(after % before == 0 for before, after in zip(old, new, strict=True))
    if mode == "nearest" and whole and (coordinates, op.attr("nearest_mode", "round_prefer_floor")) in _NEAREST:
        return op.emit(F.interpolate, op[0], size=new[2:], mode="nearest")
    half = coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and min(new[2:]) > 1)
    if mode == "linear" and not op.attr("antialias", 0) and (half or coordinates == "align_corners"):
        corners = coordinates == "align_corners"
        return op.emit(F.interpolate, op[0], size=new[2:], mode=_LINEAR[rank(op[0])], align_corners=corners)
    raise op.unsupported(f"torch has no mode {mode} with coordinates {coordinates} for this size")


def _new_shape(op: Op) -> list[int]:
    new = list(shape(op[0]))
    axes = [axis % len(new) for axis in op.attr("axes", range(len(new)))]
    scales, sizes = op.const(2), op.ints("sizes", 3)
    if not sizes and (scales is None or not scales.numel()):
        raise op.unsupported("neither scales nor sizes are given")
    if sizes and op.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise op.unsupported("keep_aspect_ratio_policy is not translated")
    for place, axis in enumerate(axes):
        exact = sizes[place] if sizes else new[axis] * float(scales[place])  # type: ignore[index]
        if exact != math.floor(exact):
            raise op.unsupported("torch has no scale that does not give a whole length")
        new[axis] = int(exact)
    return new
