"""Resize and Upsample of every opset as sums of gathered rows, with positions and weights computed at import.

Interpolation is separable and its positions depend on shapes alone: along each axis an output element is a
weighted sum of one (nearest), two (linear) or four (cubic) input elements. TVM's own converters support neither
opset 10, nor scales that do not divide evenly, nor axes other than the spatial ones of NCHW.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.frontend.onnx import onnx_frontend

Array = np.ndarray[Any, Any]

# In float32 and in this order, because ONNX Runtime decides in float32 which neighbour is nearest.
_POSITIONS: dict[str, Callable[[Array, Any, int, int], Array]] = {
    "half_pixel": lambda i, scale, _n, _m: (i + np.float32(0.5)) / scale - np.float32(0.5),
    "asymmetric": lambda i, scale, _n, _m: i / scale,
    "align_corners": lambda i, _, n, m: i * np.float32(n - 1) / np.float32(max(m - 1, 1)),
    "pytorch_half_pixel": lambda i, scale, _, m: (i + np.float32(0.5)) / scale - np.float32(0.5) if m > 1 else i * 0,
    "tf_half_pixel_for_nn": lambda i, scale, _n, _m: (i + np.float32(0.5)) / scale,
}
_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
}


@dataclass(frozen=True)
class _Rule:
    """How to interpolate, as the node's attributes say."""

    mode: str
    positions: str
    rounding: str
    cubic: float
    exclude_outside: bool

    def taps(self, inputs: int, outputs: int, scale: Any) -> list[tuple[Array, Array]]:
        """(indices, weights) of each input element that an output element along an axis is made of."""
        index = np.arange(outputs, dtype=np.float32)
        x = _POSITIONS[self.positions](index, np.float32(scale), inputs, outputs)
        if self.mode == "nearest":
            offsets, base, weights = [0], _ROUNDING[self.rounding](x), [np.ones_like(x)]
        elif self.mode == "linear":
            x = np.clip(x, 0, inputs - 1)
            base = np.floor(x)
            offsets, weights = [0, 1], [1 - (x - base), x - base]
        else:
            base = np.floor(x)
            offsets = [-1, 0, 1, 2]
            weights = [_cubic(np.abs(x - base - offset), self.cubic) for offset in offsets]
        indices = [base.astype(np.int64) + offset for offset in offsets]
        if self.exclude_outside:
            weights = [w * ((i >= 0) & (i < inputs)) for i, w in zip(indices, weights, strict=True)]
            weights = [w / sum(weights) for w in weights]
        return [(np.clip(i, 0, inputs - 1), w) for i, w in zip(indices, weights, strict=True)]


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, far)


class Resize(onnx_frontend.Resize):  # type: ignore[misc]
    """Every version of the operator: 10 has no region and counts from the corner."""

    @classmethod
    def _impl_v10(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        old = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
        return cls._impl_v18(bb, [inputs[0], None, inputs[1], None], {**attr, **old}, params)

    @classmethod
    def _impl_v11(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return cls._impl_v18(bb, inputs, attr, params)

    @classmethod
    def _impl_v18(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        rule = _rule(attr)
        x = inputs[0]
        shape = np.array([int(extent) for extent in x.ty.shape])
        axes = [axis % len(shape) for axis in attr.get("axes", range(len(shape)))]
        sizes, scales = _sizes_and_scales(shape[axes].astype(np.float32), inputs, params)
        for axis, size, scale in zip(axes, sizes, scales, strict=True):
            if size != shape[axis] or scale != 1:
                x = _resize_axis(bb, x, axis, rule.taps(int(shape[axis]), int(size), scale))
        return x


class Upsample(onnx_frontend.Upsample):  # type: ignore[misc]
    """The predecessor of Resize: the scales are an attribute until opset 9, an input then."""

    @classmethod
    def _impl_v7(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        scales = relax.const(np.array(attr["scales"], np.float32))
        return Resize._impl_v10(bb, [inputs[0], scales], attr, params)

    @classmethod
    def _impl_v9(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return Resize._impl_v10(bb, inputs, attr, params)


def _rule(attr: Any) -> _Rule:
    def word(name: str, default: str) -> str:
        return str(attr[name].decode()) if name in attr else default

    rule = _Rule(
        word("mode", "nearest").replace("bilinear", "linear"),
        word("coordinate_transformation_mode", "half_pixel"),
        word("nearest_mode", "round_prefer_floor"),
        attr.get("cubic_coeff_a", -0.75),
        bool(attr.get("exclude_outside", 0)),
    )
    if rule.positions not in _POSITIONS:
        raise NotImplementedError(f"Resize with coordinates {rule.positions!r} is not supported")
    if attr.get("antialias", 0) or word("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotImplementedError("Resize with antialiasing or a kept aspect ratio is not supported")
    return rule


def _sizes_and_scales(extents: Array, inputs: Any, params: Any) -> tuple[Array, Array]:
    """Both, whichever of the two the node gives."""
    sizes = _numbers(inputs[3], params) if len(inputs) > 3 else None
    if sizes is not None:
        return sizes, sizes.astype(np.float32) / extents
    scales = _numbers(inputs[2], params)
    if scales is None:
        raise NotImplementedError("Resize with neither sizes nor scales is not supported")
    return np.floor(scales * extents), scales


def _numbers(value: Any, params: Any) -> Array | None:
    """A constant input; None if it is absent or empty."""
    if value is None:
        return None
    constant = onnx_frontend.get_constant(value, params)
    if isinstance(constant, relax.ShapeExpr):
        return np.array([int(extent) for extent in constant.values])
    if not isinstance(constant, ir.GenericConst):
        raise NotImplementedError("Resize to a size that depends on the data is not supported")
    numbers: Array = constant.value.numpy()
    return numbers if numbers.size else None


def _resize_axis(bb: Any, x: Any, axis: int, taps: list[tuple[Array, Array]]) -> Any:
    dtype = str(x.ty.dtype)
    behind = len(x.ty.shape) - axis - 1
    terms = []
    for indices, weights in taps:
        rows = bb.normalize(relax.op.take(x, relax.const(indices), axis, mode="clip"))
        if len(taps) > 1:
            factor = relax.const(weights.reshape(-1, *[1] * behind).astype(dtype))
            rows = bb.normalize(relax.op.multiply(rows, factor))
        terms.append(rows)
    total = terms[0]
    for term in terms[1:]:
        total = bb.normalize(relax.op.add(total, term))
    return total
