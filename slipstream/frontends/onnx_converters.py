"""Converters for ONNX operators that TVM imports in a form later passes cannot optimise.

TVM emits Clip as an opaque loop nest and stacks the inputs of Sum, Max, Min and Mean into one larger tensor;
both stop layout conversion and fusion. As plain element-wise operators they fuse into the convolution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from slipstream.frontends import onnx_recurrent
from slipstream.frontends.onnx_resize import Resize, Upsample
from slipstream.tvm_bridge.onnx_table import stock_converters, with_converters


class _Clip(onnx_frontend.Clip):  # type: ignore[misc]
    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        dtype = str(inputs[0].ty.dtype)
        low, high = attr.get("min"), attr.get("max")
        return _clip(bb, inputs[0], *(None if b is None else relax.const(b, dtype) for b in (low, high)))

    @classmethod
    def _impl_v11(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return cls._impl_v13(bb, inputs, attr, params)

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        low, high = inputs[1], inputs[2]
        if any(b is not None and not _is_number(b) for b in (low, high)):
            return super()._impl_v13(bb, inputs, attr, params)
        return _clip(bb, inputs[0], low, high)


def _is_number(bound: Any) -> bool:
    return isinstance(bound, ir.GenericConst) and not np.isnan(bound.value.numpy()).any()


def _clip(bb: Any, x: Any, low: Any, high: Any) -> Any:
    if low is not None:
        x = bb.normalize(relax.op.maximum(x, low))
    return x if high is None else bb.normalize(relax.op.minimum(x, high))


def _pairwise(base: type, binary: Callable[[Any, Any], Any], mean: bool = False) -> type:
    class Pairwise(base):  # type: ignore[misc]
        @classmethod
        def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
            operands = list(inputs)
            total = functools.reduce(lambda a, b: bb.normalize(binary(a, b)), operands)
            if not mean:
                return total
            return bb.normalize(relax.op.divide(total, relax.const(len(operands), str(total.ty.dtype))))

    return Pairwise


class _Gather(onnx_frontend.Gather):  # type: ignore[misc]
    """Negative constant indices are normalised at import, others at run time, which are also clipped to the table."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        data, indices = inputs[0], inputs[1]
        if not _is_static(data) or not isinstance(indices.ty, relax.TensorType):
            return super()._impl_v13(bb, inputs, attr, params)
        axis = attr.get("axis", 0) % len(data.ty.shape)
        extent = int(data.ty.shape[axis])
        if isinstance(indices, ir.GenericConst):
            numbers = indices.value.numpy()
            indices = relax.const(np.where(numbers < 0, numbers + extent, numbers), str(numbers.dtype))
        else:
            dtype = str(indices.ty.dtype)
            from_back = bb.normalize(relax.op.add(indices, relax.const(extent, dtype)))
            negative = bb.normalize(relax.op.less(indices, relax.const(0, dtype)))
            indices = bb.normalize(relax.op.where(negative, from_back, indices))
        return relax.op.take(data, indices, axis, mode="clip")


def _bounded(base: type, axes_of: Callable[[Any, Any], Sequence[int]]) -> type:
    """The converter, for computed indices of these axes that point to the nearest element where they point outside.

    ONNX Runtime raises an error there. Compiled code would read, and write, memory that is not the tensor's.
    """

    class Bounded(base):  # type: ignore[misc]
        @classmethod
        def get_converter(cls, opset: int) -> Callable[..., Any]:
            convert: Callable[..., Any] = super().get_converter(opset)

            def bounded(bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
                data, indices = inputs[0], inputs[1]
                axes = axes_of(inputs, attr)
                if not isinstance(indices, ir.GenericConst):
                    extents = np.array([int(data.ty.shape[axis]) for axis in axes])
                    dtype = str(indices.ty.dtype)
                    low, high = relax.const(-extents, dtype), relax.const(np.maximum(extents - 1, 0), dtype)
                    inputs[1] = bb.normalize(relax.op.minimum(bb.normalize(relax.op.maximum(indices, low)), high))
                return convert(bb, inputs, attr, params)

            return bounded

    return Bounded


def _axis(inputs: Any, attr: Any) -> Sequence[int]:
    return [attr.get("axis", 0)]


def _scattered_axis(inputs: Any, attr: Any) -> Sequence[int]:
    """Refused where TVM is wrong: it counts the places before the axis, and those after it, through the indices and the
    data alike, of which the outermost of either may differ."""
    data, indices = ([int(extent) for extent in value.ty.shape] for value in inputs[:2])
    axis = attr.get("axis", 0) % len(data)
    free = {0, axis, axis + 1}
    if any(own != other for place, (own, other) in enumerate(zip(indices, data, strict=True)) if place not in free):
        raise NotImplementedError(f"its indices {indices} are smaller than its data {data} along other axes")
    return [axis]


def _first_axes(inputs: Any, attr: Any) -> Sequence[int]:
    first = attr.get("batch_dims", 0)
    return range(first, first + int(inputs[1].ty.shape[-1]))


class _Slice(onnx_frontend.Slice):  # type: ignore[misc]
    """Bounds are brought into range at import; before opset 10 they are attributes."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        bounds = [relax.const(np.array(attr[name], np.int64)) for name in ("starts", "ends")]
        axes = relax.const(np.array(attr.get("axes", range(len(attr["starts"]))), np.int64))
        return cls._impl_v10(bb, [inputs[0], *bounds, axes, None], attr, params)

    @classmethod
    def _impl_v10(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        x: Any = inputs[0]
        starts, ends, axes, steps = (inputs[i] if i < len(inputs) else None for i in range(1, 5))
        if not _is_static(x) or not all(_is_constant_or_absent(v) for v in (starts, ends, axes, steps)):
            return super()._impl_v13(bb, inputs, attr, params)
        begin, end = _integers(starts), _integers(ends)
        along = range(len(begin)) if axes is None else [axis % len(x.ty.shape) for axis in _integers(axes)]
        by = [1] * len(begin) if steps is None else _integers(steps)
        cut = [slice(*bounds) for bounds in zip(begin, end, by, strict=True)]
        ranges = [one.indices(int(x.ty.shape[axis])) for axis, one in zip(along, cut, strict=True)]
        stops = [_stop(one, int(x.ty.shape[axis])) for axis, one in zip(along, ranges, strict=True)]
        return relax.op.strided_slice(x, list(along), [r[0] for r in ranges], stops, by)

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return cls._impl_v10(bb, inputs, attr, params)


def _stop(bounds: tuple[int, int, int], extent: int) -> int:
    """Where a slice of an axis stops, as TVM counts: an empty one where it begins."""
    begin, stop, _ = bounds
    if not range(*bounds):
        return begin
    return stop if stop >= 0 else -extent - 1


def _is_static(value: Any) -> bool:
    """Whether `value` is computed at run time, as a tensor of known shape."""
    type_ = getattr(value, "ty", None)
    return (
        not isinstance(value, ir.GenericConst)
        and isinstance(type_, relax.TensorType)
        and type_.shape is not None
        and all(isinstance(extent, tirx.IntImm) for extent in type_.shape)
    )


def _is_constant_or_absent(value: Any) -> bool:
    return value is None or isinstance(value, ir.GenericConst)


def _integers(constant: Any) -> list[int]:
    return [int(number) for number in constant.value.numpy().reshape(-1)]


class _Dropout(onnx_frontend.Dropout):  # type: ignore[misc]
    """Nothing is dropped outside training; TVM's operator for it stops layout conversion."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        if attr["tvm_custom"]["num_outputs"] == 1:
            return inputs[0]
        mask = relax.const(np.ones([int(extent) for extent in inputs[0].ty.shape], np.bool_))
        return bb.normalize(relax.Tuple([inputs[0], mask]))

    @classmethod
    def _impl_v12(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        ratio, training = inputs[1], inputs[2]
        if training is not None and not (_is_zero(training) or _is_zero(ratio)):
            raise NotImplementedError(f"node {attr['tvm_custom']['name']!r} is in training mode, in which it is random")
        return cls._impl_v1(bb, inputs, attr, params)


def _is_zero(value: Any) -> bool:
    return isinstance(value, ir.GenericConst) and not value.value.numpy().any()


class _Pow(onnx_frontend.Pow):  # type: ignore[misc]
    """The exponent may be of another type than the base, which is that of the result."""

    @classmethod
    def _impl_v7(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        base, exponent = inputs[0], inputs[1]
        dtype = str(base.ty.dtype)
        if "int" not in dtype:
            return super()._impl_v7(bb, [base, _cast(bb, exponent, dtype)], attr, params)
        times = _integer_of(exponent) if exponent.ty.ndim <= base.ty.ndim else None
        if times in (2, 3):  # ONNX Runtime's products of integers may wrap around
            return functools.reduce(lambda a, b: bb.normalize(relax.op.multiply(a, b)), [base] * times)
        # TVM has powers of floats alone; a fraction as exponent counts in full.
        base, exponent = (_cast(bb, one, "float64") for one in (base, exponent))
        return relax.op.astype(bb.normalize(relax.op.power(base, exponent)), dtype)


def _cast(bb: Any, value: Any, dtype: str) -> Any:
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, ir.GenericConst):
        return relax.const(value.value.numpy().astype(dtype), dtype)
    return bb.normalize(relax.op.astype(value, dtype))


def _integer_of(value: Any) -> int | None:
    """The one whole number of a constant; None for anything else."""
    array = value.value.numpy() if isinstance(value, ir.GenericConst) else None
    if array is None or array.size != 1 or not float(array.reshape(())).is_integer():
        return None
    return int(array.reshape(()))


class _IsInf(onnx_frontend.IsInf):  # type: ignore[misc]
    """Infinities of one sign, if the node says so."""

    @classmethod
    def _impl_v10(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        x = inputs[0]
        found = bb.normalize(relax.op.isinf(x))
        zero = relax.const(0, str(x.ty.dtype))
        if not attr.get("detect_positive", 1):
            found = bb.normalize(relax.op.logical_and(found, bb.normalize(relax.op.less(x, zero))))
        if not attr.get("detect_negative", 1):
            found = bb.normalize(relax.op.logical_and(found, bb.normalize(relax.op.greater(x, zero))))
        return found


class _TopK(onnx_frontend.TopK):  # type: ignore[misc]
    """`k` became an input with opset 10, not 11."""

    @classmethod
    def _impl_v10(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return super()._impl_v11(bb, inputs, attr, params)


class _ConvTranspose(onnx_frontend.ConvTranspose):  # type: ignore[misc]
    """`output_shape` determines the padding; TVM's converter does not support it."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        if "output_shape" in attr:
            attr = {**attr, **_padding_for_output_shape(inputs, attr)}
        return super()._impl_v1(bb, inputs, attr, params)


def _padding_for_output_shape(inputs: Any, attr: Any) -> dict[str, Any]:
    """pads = stride * (input - 1) + output padding + window - output, the odd one at the end unless SAME_LOWER."""
    extents, window = ([int(extent) for extent in value.ty.shape][2:] for value in inputs[:2])
    ones = [1] * len(extents)
    strides, dilations = attr.get("strides", ones), attr.get("dilations", ones)
    more = list(attr.get("output_padding", [0] * len(extents)))
    outputs = list(attr["output_shape"])[-len(extents) :]
    begin, end = [], []
    for i, extent in enumerate(extents):
        total = strides[i] * (extent - 1) + more[i] + (window[i] - 1) * dilations[i] + 1 - outputs[i]
        if total < 0:
            more[i], total = more[i] - total, 0
        upper = attr.get("auto_pad", b"NOTSET") == b"SAME_UPPER"
        small, large = total // 2, total - total // 2
        begin.append(small if upper else large)
        end.append(large if upper else small)
    return {"pads": begin + end, "output_padding": more, "auto_pad": b"NOTSET"}


class _MaxPool(onnx_frontend.MaxPool):  # type: ignore[misc]
    """TVM's own result is too small for SAME_LOWER where a stride does not divide the extent."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        if attr.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER"):
            attr = {**attr, "pads": _padding_for_same_extents(inputs[0], attr), "auto_pad": b"NOTSET"}
        return super()._impl_v1(bb, inputs, attr, params)


def _padding_for_same_extents(x: Any, attr: Any) -> list[int]:
    """As many windows as strides in the input, rounded up; the odd place is at the end unless SAME_LOWER."""
    extents = [int(extent) for extent in x.ty.shape][2:]
    ones = [1] * len(extents)
    steps = zip(attr["kernel_shape"], attr.get("strides", ones), attr.get("dilations", ones), strict=True)
    totals = [
        max(0, (-(-extent // stride) - 1) * stride + (window - 1) * dilation + 1 - extent)
        for extent, (window, stride, dilation) in zip(extents, steps, strict=True)
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if attr["auto_pad"] == b"SAME_UPPER" else large + small


def _reduction(base: type, of_one: Callable[[Any], Any]) -> type:
    class Reduction(base):  # type: ignore[misc]
        """Without axes, where the node says that none are all, each element is reduced by itself; TVM leaves it out."""

        @classmethod
        def _impl_v18(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
            axes = onnx_frontend.get_constant(inputs[1], params) if len(inputs) > 1 else None
            if attr.get("noop_with_empty_axes", 0) and (axes is None or _is_empty(axes)):
                return bb.normalize(of_one(inputs[0]))
            return super()._impl_v18(bb, inputs, attr, params)

    return Reduction


class _Concat(onnx_frontend.Concat):  # type: ignore[misc]
    """Empty parts, which exporters of cached keys leave behind, are dropped."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        parts = [part for part in inputs if not _is_empty(part)]
        return super()._impl_v13(bb, parts, attr, params) if len(parts) > 1 else parts[0] if parts else inputs[0]


def _is_empty(value: Any) -> bool:
    type_ = getattr(value, "ty", None)
    shape = type_.shape if isinstance(type_, relax.TensorType) else None
    return shape is not None and any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in shape)


class _LpNormalization(onnx_frontend.OnnxOpConverter):  # type: ignore[misc]
    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        x, axis = inputs[0], [attr.get("axis", -1)]
        if attr.get("p", 2) == 1:
            norm = relax.op.sum(relax.op.abs(x), axis, keepdims=True)
        else:
            norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), axis, keepdims=True))
        norm = bb.normalize(norm)
        dtype = str(x.ty.dtype)
        # A row of zeros stays as it is.
        flat = bb.normalize(relax.op.equal(norm, relax.const(0, dtype)))
        return relax.op.divide(x, bb.normalize(relax.op.where(flat, relax.const(1, dtype), norm)))


class _ReduceLogSumExp(onnx_frontend.ReduceLogSumExp):  # type: ignore[misc]
    """Of infinite elements too: TVM's converter subtracts the largest from each, which leaves no number of these."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return _log_sum_exp(bb, inputs[0], attr.get("axes"), attr.get("keepdims", 1))

    @classmethod
    def _impl_v18(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        given = inputs[1] if len(inputs) > 1 else None
        axes = None if given is None else _integers(onnx_frontend.get_constant(given, params))
        if not axes and attr.get("noop_with_empty_axes", 0):
            return inputs[0]
        return _log_sum_exp(bb, inputs[0], axes or None, attr.get("keepdims", 1))


def _log_sum_exp(bb: Any, x: Any, axes: Any, keepdims: int) -> Any:
    most = bb.normalize(relax.op.max(x, axes, True))
    finite = bb.normalize(relax.op.where(relax.op.isinf(most), relax.const(0, str(x.ty.dtype)), most))
    total = relax.op.sum(relax.op.exp(relax.op.subtract(x, finite)), axes, True)
    result = bb.normalize(relax.op.add(relax.op.log(total), most))
    return result if keepdims else relax.op.squeeze(result, axes)


class _ThresholdedRelu(onnx_frontend.ThresholdedRelu):  # type: ignore[misc]
    """Zero for minus infinity too, which TVM's converter multiplies by zero."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        x, dtype = inputs[0], str(inputs[0].ty.dtype)
        above = bb.normalize(relax.op.greater(x, relax.const(attr.get("alpha", 1.0), dtype)))
        return relax.op.where(above, x, relax.const(0, dtype))


class _CumProd(onnx_frontend.OnnxOpConverter):  # type: ignore[misc]
    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        x, axis = inputs[0], _integers(onnx_frontend.get_constant(inputs[1], params))[0]
        backwards = attr.get("reverse", 0)
        if backwards:
            x = bb.normalize(relax.op.flip(x, axis))
        x = bb.normalize(relax.op.cumprod(x, axis, exclusive=bool(attr.get("exclusive", 0))))
        return bb.normalize(relax.op.flip(x, axis)) if backwards else x


_CONVERTERS = {
    **onnx_recurrent.CONVERTERS,
    "Clip": _Clip,
    "Gather": _Gather,
    "GatherElements": _bounded(onnx_frontend.GatherElements, _axis),
    "GatherND": _bounded(onnx_frontend.GatherND, _first_axes),
    "Scatter": _bounded(onnx_frontend.Scatter, _axis),
    "ScatterElements": _bounded(onnx_frontend.ScatterElements, _scattered_axis),
    "ScatterND": _bounded(onnx_frontend.ScatterND, _first_axes),
    "Slice": _Slice,
    "Concat": _Concat,
    "Dropout": _Dropout,
    "IsInf": _IsInf,
    "Pow": _Pow,
    "TopK": _TopK,
    "ConvTranspose": _ConvTranspose,
    "MaxPool": _MaxPool,
    "CumProd": _CumProd,
    "LpNormalization": _LpNormalization,
    "ReduceLogSumExp": _ReduceLogSumExp,
    "Resize": Resize,
    "ThresholdedRelu": _ThresholdedRelu,
    "Upsample": Upsample,
    "Sum": _pairwise(onnx_frontend.Sum, relax.op.add),
    "Max": _pairwise(onnx_frontend.Max, relax.op.maximum),
    "Min": _pairwise(onnx_frontend.Min, relax.op.minimum),
    "Mean": _pairwise(onnx_frontend.Mean, relax.op.add, mean=True),
    "ReduceL1": _reduction(onnx_frontend.ReduceL1, relax.op.abs),
    "ReduceL2": _reduction(onnx_frontend.ReduceL2, relax.op.abs),
    "ReduceLogSum": _reduction(onnx_frontend.ReduceLogSum, relax.op.log),
    "ReduceSumSquare": _reduction(onnx_frontend.ReduceSumSquare, lambda x: relax.op.multiply(x, x)),
}


# TVM's RoiAlign samples other places than ONNX Runtime's.
_WRONG_IN_TVM = ("RoiAlign",)


def convert_map() -> dict[str, Any]:
    """Every ONNX operator that can be imported, by name, with its converter."""
    known = {**stock_converters(), **_CONVERTERS}
    return {name: converter for name, converter in known.items() if name not in _WRONG_IN_TVM}


def our_converters() -> AbstractContextManager[None]:
    """Import with `convert_map()` in place of TVM's own table."""
    return with_converters(convert_map())
