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
    "half_pixel_symmetric": lambda i, scale, n, m: (
        # around the middle of the input
        np.float32(n / 2) * (1 - np.float32(m) / (scale * np.float32(n)))
        + (i + np.float32(0.5)) / scale
        - np.float32(0.5)
    ),
}
_CROP = "tf_crop_and_resize"
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
    antialias: bool = False
    extrapolation: float = 0.0

    def smoothing(self, inputs: int, outputs: int, scale: Any) -> Array:
        """The matrix [inputs, outputs] of an interpolation whose kernel is as wide as an output element."""
        x = _POSITIONS[self.positions](np.arange(outputs, dtype=np.float32), np.float32(scale), inputs, outputs)
        border = int(np.ceil(2 / float(scale))) + 1
        places = np.arange(-border, inputs + border)
        distance = np.abs(places[:, None] - x[None, :]) * min(1.0, float(scale))
        if self.mode == "linear":
            weights = np.maximum(0.0, 1.0 - distance)
        else:
            weights = np.where(distance < 2, _cubic(distance, self.cubic), 0.0)
        if self.exclude_outside:
            weights[(places < 0) | (places >= inputs)] = 0.0
        matrix = np.zeros((inputs, outputs))
        # Beyond the border the outermost element goes on.
        np.add.at(matrix, np.clip(places, 0, inputs - 1), weights)
        total: Array = matrix.sum(0, keepdims=True)
        return matrix / total

    def crop(self, inputs: int, outputs: int, begin: float, end: float) -> tuple[list[tuple[Array, Array]], Array]:
        """The taps of an interpolation within a region, and which outputs lie inside the input."""
        last = np.float32(inputs - 1)
        index = np.arange(outputs, dtype=np.float32)
        if outputs > 1:
            x = np.float32(begin) * last + index * np.float32(end - begin) * last / np.float32(outputs - 1)
        else:
            x = np.float32(0.5) * np.float32(begin + end) * last + index
        return self._taps_at(x, inputs), (x >= 0) & (x <= last)

    def taps(self, inputs: int, outputs: int, scale: Any) -> list[tuple[Array, Array]]:
        """(indices, weights) of each input element that an output element along an axis is made of."""
        index = np.arange(outputs, dtype=np.float32)
        return self._taps_at(_POSITIONS[self.positions](index, np.float32(scale), inputs, outputs), inputs)

    def _taps_at(self, x: Array, inputs: int) -> list[tuple[Array, Array]]:
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
        if rule.mode != "nearest" and "int" in str(x.ty.dtype):
            raise NotImplementedError(f"Resize of {x.ty.dtype} between elements is not supported")
        shape = np.array([int(extent) for extent in x.ty.shape])
        axes = [axis % len(shape) for axis in attr.get("axes", range(len(shape)))]
        policy = attr.get("keep_aspect_ratio_policy", b"stretch").decode()
        sizes, scales = _sizes_and_scales(shape[axes].astype(np.float32), inputs, params, policy)
        if rule.positions == _CROP:
            region = _numbers(inputs[1], params)
            if region is None:
                raise NotImplementedError("Resize within a region that depends on the data is not supported")
            return _crop(bb, x, axes, rule, sizes, region)
        for axis, size, scale in zip(axes, sizes, scales, strict=True):
            if rule.antialias and scale < 1 and rule.mode != "nearest":
                x = _apply_matrix(bb, x, axis, rule.smoothing(int(shape[axis]), int(size), scale))
            elif size != shape[axis] or scale != 1:
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
        bool(attr.get("antialias", 0)),
        attr.get("extrapolation_value", 0.0),
    )
    if rule.positions not in _POSITIONS and rule.positions != _CROP:
        raise NotImplementedError(f"Resize with coordinates {rule.positions!r} is not supported")
    return rule


def _sizes_and_scales(extents: Array, inputs: Any, params: Any, policy: str) -> tuple[Array, Array]:
    """Both, whichever of the two the node gives."""
    sizes = _numbers(inputs[3], params) if len(inputs) > 3 else None
    if sizes is not None:
        if policy != "stretch":
            ratios = sizes.astype(np.float32) / extents
            scale = ratios.max() if policy == "not_smaller" else ratios.min()
            return np.floor(scale * extents + np.float32(0.5)), np.full_like(extents, scale)
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


def _crop(bb: Any, x: Any, axes: list[int], rule: _Rule, sizes: Array, region: Array) -> Any:
    """The region between two corners, in fractions of the input; what lies outside has a value of its own."""
    rank = len(x.ty.shape)
    inside = np.ones([1] * rank, np.bool_)
    for number, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        begin, end = float(region[number]), float(region[number + len(axes)])
        extent = int(x.ty.shape[axis])
        if (int(size), begin, end) == (extent, 0.0, 1.0):
            continue
        taps, valid = rule.crop(extent, int(size), begin, end)
        x = _resize_axis(bb, x, axis, taps)
        inside = inside & valid.reshape([-1 if a == axis else 1 for a in range(rank)])
    outside = relax.const(rule.extrapolation, str(x.ty.dtype))
    return x if inside.all() else bb.normalize(relax.op.where(relax.const(inside), x, outside))


def _apply_matrix(bb: Any, x: Any, axis: int, matrix: Array) -> Any:
    """The product with a matrix [inputs, outputs] along an axis."""
    rank = len(x.ty.shape)
    order = [*(a for a in range(rank) if a != axis), axis]
    rows = bb.normalize(relax.op.permute_dims(x, order))
    product = bb.normalize(relax.op.matmul(rows, relax.const(matrix.astype(str(x.ty.dtype)))))
    return bb.normalize(relax.op.permute_dims(product, [order.index(a) for a in range(rank)]))


def _resize_axis(bb: Any, x: Any, axis: int, taps: list[tuple[Array, Array]]) -> Any:
    dtype = str(x.ty.dtype)
    behind = len(x.ty.shape) - axis - 1
    terms = []
    for indices, weights in taps:
        rows = bb.normalize(relax.op.take(x, relax.const(indices), axis, mode="clip"))
        if len(taps) > 1:
            factor = relax.const(weights.reshape(-1, *[1] * behind).astype(dtype), dtype)
            rows = bb.normalize(relax.op.multiply(rows, factor))
        terms.append(rows)
    total = terms[0]
    for term in terms[1:]:
        total = bb.normalize(relax.op.add(total, term))
    return total
