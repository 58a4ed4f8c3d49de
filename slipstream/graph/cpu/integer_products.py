"""Convolutions and matmuls between a dequantisation and a quantisation, in integer arithmetic.

With data of zero point z and weights of zero point 0, sum((x - z) * w) is sum(x * w) - z * sum(w): the last term is
known and joins the bias. What the quantisation behind does to the sums (bias, scale, clipping, rounding) is one
element-wise function, which is fused with the product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.cpu import byte_functions, integer_compute
from slipstream.graph.cpu.byte_functions import ByteFunction
from slipstream.graph.cpu.integer_compute import Array, Window
from slipstream.graph.cpu.quantisation import BYTES, Levels, is_one_number
from slipstream.graph.fuse import ELEMENT_WISE, KNOWN_PATTERN, OPAQUE, PRODUCT
from slipstream.graph.relax_walk import calls_in, cleaned, is_constant, rewritten
from slipstream.machine.dot_product import SDOT, SDOT_OF_CHANNELS, dot_product_of
from slipstream.machine.target import Target

# Of int32.
_LARGEST_SUM = 2**31 - 1
# Fewer products than this are exact in float32: 255 * 127 * 500 < 2**24.
_MOST_EXACT = 500


def use_integers(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Replace what can be computed with integers in a module after `spell_out_quantisation` and layout conversion.

    Without an instruction for products of bytes float32 is faster: two models 1.5 and 2.3 times on a Zen 3.
    """
    if target.gpu is not None or not dot_product_of(target).instruction or not _rounds(mod):
        return mod
    return cleaned(rewritten(mod, _IntegerProducts(mod, target)))


def _rounds(mod: tvm.IRModule) -> bool:
    casts = [call for call in calls_in(mod["main"]) if _name(call) == "relax.astype"]
    return any(str(call.attrs.dtype) in ("int8", "uint8") for call in casts)


@dataclass(frozen=True)
class DynamicLevels:
    """`Levels` with a zero point that is computed: a tensor of one number in float32."""

    data: Any
    scale: float
    zero: Any


@dataclass(frozen=True)
class Weights:
    """A constant of bytes; `scale` is one number or one for each entry along `axis`."""

    data: Array
    scale: Array
    axis: int


@dataclass(frozen=True)
class Sums:
    """A product before scaling: value = (data + offset) * scale along the last axis, of which `columns` count.

    `largest` are bounds of the data's absolute values.
    """

    data: Any
    offset: Array
    scale: Array
    columns: int
    largest: Array


@mutator
class _IntegerProducts(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, target: Target) -> None:
        super().__init__(mod)
        self._dot = dot_product_of(target)
        self._sums: dict[Any, Sums] = {}
        self._levels: dict[Any, Levels] = {}
        self._functions: dict[Any, ByteFunction] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        result = self._replacement(call)
        return self._as_function(call if result is None else result)

    def _replacement(self, call: Any) -> Any | None:
        name = _name(call)
        if name == "relax.nn.conv2d":
            sums = self._convolution(call)
            return self._dynamic_convolution(call) if sums is None else self._scaled(sums)
        if name == "relax.matmul":
            if (sums := self._matmul(call)) is not None:
                return self._scaled(sums)
            dynamic = self._dynamic_matmul(call)
            return self._activations_matmul(call) if dynamic is None else dynamic
        if name == "relax.astype" and str(call.attrs.dtype) == self._dot.data_type:
            table = self._table(call)
            return self._quantise(call) if table is None else table
        if name in _KEEPS_LEVELS and (levels := self._levels_of(call.args[0])) is not None:
            moved = self.builder_.emit(relax.Call(call.op, [levels.data, *call.args[1:]], call.attrs))
            return self._dequantised(replace(levels, data=moved))
        if name == "relax.multiply" and (levels := self._levels_of(call)) is not None:
            return self._dequantised(levels)
        return None

    def _as_function(self, value: Any) -> Any:
        """`value`, of which it is noted if it is a function of one byte."""
        name = _name(value)
        if name == "relax.astype" and str(value.attrs.dtype) == self._dot.data_type:
            found = self._function_of(value.args[0])
            function = None if found is None else found.then(found.values.astype(self._dot.data_type))
        else:
            function = self._evaluated(name, value) if name else None
        if function is None:
            return value
        result = self.builder_.emit(value)
        self._functions[result] = function
        return result

    def _evaluated(self, name: str, call: Any) -> ByteFunction | None:
        known = [self._function_of(argument) for argument in call.args]
        functions = [function for function in known if function is not None]
        if not functions:
            return None
        numbers = [self._constant_of(argument) for argument in call.args]
        if any(f is None and (n is None or n.size != 1) for f, n in zip(known, numbers, strict=True)):
            return None
        source = functions[0].source
        if not all(f.source.same_as(source) for f in functions) or not _same_shape(call, source):
            return None
        operands = [
            np.asarray(n, np.float32).reshape(()) if f is None else f.values
            for f, n in zip(known, numbers, strict=True)
        ]
        found = byte_functions.evaluate(name, operands)
        costly = any(f.costly for f in functions)
        return None if found is None else functions[0].then(found[0], costly or found[1])

    def _function_of(self, value: Any) -> ByteFunction | None:
        return self._functions.get(self._origin(value)) if isinstance(value, relax.Var) else None

    def _table(self, call: Any) -> Any | None:
        """A costly function of one byte, rounded to a byte, as a table."""
        function = self._function_of(call.args[0])
        if function is None or not function.costly:
            return None
        values = function.values.astype(self._dot.data_type)
        result = self._emit(integer_compute.looked_up, function.source, relax.const(values))
        self._functions[result] = function.then(values)
        return result

    def _dequantised(self, levels: Levels) -> Any:
        """The tensor in float32, of which the levels are noted for a product or a quantisation behind it."""
        parameters = _floats(levels.scale), self._zero(levels.zero)
        result = self._emit(integer_compute.dequantised, levels.data, *parameters)
        self._levels[result] = levels
        data = self._origin(levels.data)
        of_data = self._function_of(data) or ByteFunction(data, byte_functions.levels_of(self._dot.data_type))
        values = (of_data.values.astype(np.float32) - np.float32(levels.zero)) * np.float32(levels.scale)
        self._functions[result] = of_data.then(values)
        return result

    def _emit(self, function: Any, *tensors: Any, **settings: Any) -> Any:
        name = getattr(function, "func", function).__name__
        is_product = name in ("convolution", "depthwise", "depthwise_in_groups", "matmul")
        call = self.builder_.call_te(
            partial(function, **settings),
            *tensors,
            primfunc_name_hint=f"integer_{name}" if is_product else name,
            primfunc_attrs={KNOWN_PATTERN: PRODUCT if is_product else _APART.get(name, ELEMENT_WISE)},
        )
        return self.builder_.emit(call)

    def _scaled(self, sums: Sums) -> Any:
        """The product in float32, of which the sums are noted for a quantisation behind it."""
        result = self._emit(
            integer_compute.scaled, sums.data, _of_type(sums), _floats(sums.scale), columns=sums.columns
        )
        self._sums[result] = sums
        return result

    def _convolution(self, call: Any) -> Sums | None:
        levels, weights = self._levels_of(call.args[0]), self._weights_of(call.args[1])
        if levels is None or weights is None:
            return None
        data = self._sums_of_image(call, levels.data, self._zero(levels.zero), weights)
        if data is None:
            return None
        filters = weights.data.shape[0]
        scale = np.broadcast_to((weights.scale * levels.scale).astype(np.float32), (filters,))
        offset = -levels.zero * weights.data.astype(np.int64).sum(axis=(1, 2, 3))
        return Sums(data, offset.astype(str(data.ty.dtype)), scale, filters, _largest(weights.data, (1, 2, 3)))

    def _sums_of_image(self, call: Any, data: Any, zero: Any, weights: Weights) -> Any | None:
        """Sums of products of bytes, with a border of the one byte in `zero`; None where bytes cannot be used."""
        attributes = call.attrs
        layouts = attributes.data_layout, attributes.kernel_layout, attributes.out_layout
        if layouts != ("NHWC", "OHWI", "NHWC") or (weights.axis != 0 and weights.scale.size > 1):
            return None
        if _largest(weights.data, (1, 2, 3)).max(initial=0) > _LARGEST_SUM:
            return None
        filters, kernel_y, kernel_x, depth = weights.data.shape
        window = Window(
            (kernel_y, kernel_x),
            _pair(attributes.strides),
            _four(attributes.padding),
            _pair(attributes.dilation),
            int(attributes.groups),
        )
        if window.groups > 1 and depth == 1 and window.groups == filters and kernel_y * kernel_x <= _MOST_EXACT:
            by_tap = np.ascontiguousarray(weights.data[:, :, :, 0].transpose(1, 2, 0))
            if self._dot is SDOT and filters % SDOT_OF_CHANNELS.lanes == 0:
                packed = relax.const(integer_compute.pack_channels(by_tap, SDOT_OF_CHANNELS))
                function = partial(integer_compute.depthwise_in_groups, dot=SDOT_OF_CHANNELS)
                return self._emit(function, data, packed, zero, window=window)
            taps = relax.const(by_tap.astype(np.float32))
            return self._emit(integer_compute.depthwise, data, taps, zero, window=window)
        dot, own = self._dot, weights.data
        if window.groups > 1:
            if depth % dot.group or (filters // window.groups) % dot.lanes:
                return None
        elif depth % dot.group and window.dilation[1] == 1:
            own = integer_compute.rows_of_pixels(own, dot)
        elif depth % dot.group:
            return None
        packed = relax.const(integer_compute.pack_columns(own, dot))
        return self._emit(integer_compute.convolution, data, packed, zero, window=window, dot=dot)

    def _dynamic_convolution(self, call: Any) -> Any | None:
        """The same with data whose zero point is known at run time."""
        levels, weights = self._dynamic_levels_of(call.args[0]), self._weights_of(call.args[1])
        if levels is None or weights is None or weights.scale.size > 1:
            return None
        one = relax.op.astype(relax.op.reshape(levels.zero, relax.ShapeExpr([1])), self._dot.data_type)
        data = self._sums_of_image(call, levels.data, self.builder_.emit(one), weights)
        if data is None or str(data.ty.dtype) != "int32":
            return None
        of_filters = weights.data.astype(np.int32).sum(axis=(1, 2, 3), dtype=np.int32)
        return self._scaled_with_zero(data, of_filters, weights.scale[0] * levels.scale, levels.zero)

    def _matmul(self, call: Any) -> Sums | None:
        levels, weights = self._levels_of(call.args[0]), self._weights_of(call.args[1])
        if levels is None or weights is None or weights.data.ndim != 2 or levels.data.ty.ndim < 2:
            return None
        if weights.axis != 1 and weights.scale.size > 1:
            return None
        largest = _largest(weights.data, (0,))
        if largest.max(initial=0) > _LARGEST_SUM:
            return None
        columns = weights.data.shape[1]
        scale = np.broadcast_to((weights.scale * levels.scale).astype(np.float32), (columns,))
        packed = relax.const(integer_compute.pack_columns(np.ascontiguousarray(weights.data.T), self._dot))
        data = self._emit(integer_compute.matmul, levels.data, packed, dot=self._dot)
        offset = -levels.zero * weights.data.astype(np.int64).sum(axis=0)
        return Sums(data, offset.astype(np.int32), scale, columns, largest)

    def _dynamic_matmul(self, call: Any) -> Any | None:
        """The same with data whose zero point is known at run time, as in a dynamically quantised model."""
        levels, weights = self._dynamic_levels_of(call.args[0]), self._weights_of(call.args[1])
        if levels is None or weights is None or weights.data.ndim != 2 or weights.scale.size > 1:
            return None
        if levels.data.ty.ndim < 2 or _largest(weights.data, (0,)).max(initial=0) > _LARGEST_SUM:
            return None
        packed = relax.const(integer_compute.pack_columns(np.ascontiguousarray(weights.data.T), self._dot))
        data = self._emit(integer_compute.matmul, levels.data, packed, dot=self._dot)
        of_columns = weights.data.astype(np.int32).sum(axis=0, dtype=np.int32)
        return self._scaled_with_zero(data, of_columns, weights.scale[0] * levels.scale, levels.zero)

    def _dynamic_levels_of(self, value: Any) -> DynamicLevels | None:
        call = self._definition(value)
        if _name(call) == "relax.permute_dims":
            if (levels := self._dynamic_levels_of(call.args[0])) is None:
                return None
            return replace(levels, data=self.builder_.emit(relax.Call(call.op, [levels.data], call.attrs)))
        if (found := self._centred_bytes(value)) is None:
            return None
        data, zero, scale = found
        return DynamicLevels(data, scale, zero) if self._is_byte(zero) else None

    def _is_byte(self, zero: Any) -> bool:
        """Whether it is a zero point as `spell_out_quantisation` writes one that is computed: one byte, with the shift
        to our type."""
        shifted = self._match(zero, "relax.add")
        byte = self._match(shifted[0], "relax.astype") if shifted else None
        shift = _number_of(shifted[1]) if shifted else None
        if byte is None or shift is None or not is_one_number(zero) or str(byte[0].ty.dtype) not in BYTES:
            return False
        limits, own = (np.iinfo(dtype) for dtype in (self._dot.data_type, str(byte[0].ty.dtype)))
        return shift == float(limits.min) - float(own.min)

    def _scaled_with_zero(self, data: Any, of_columns: Array, scale: float, zero: Any) -> Any:
        columns = len(of_columns)
        parameters = relax.const(of_columns), _floats(np.full(columns, scale)), zero
        return self._emit(integer_compute.scaled_with_zero, data, *parameters, columns=columns)

    def _activations_matmul(self, call: Any) -> Any | None:
        """A product of two tensors that are computed: the second is packed at run time.

        sum((a - z) * (b - y)) is sum(a * b) - z * sum(b) - y * sum(a) + z * y * length.
        """
        left, right = (self._levels_of(argument) for argument in call.args)
        if left is None or right is None or min(left.data.ty.ndim, right.data.ty.ndim) < 2:
            return None
        shapes = [[int(extent) for extent in levels.data.ty.shape] for levels in (left, right)]
        (*batch, _, length), (*other, _, columns) = shapes
        if batch != other or length % self._dot.group or columns % self._dot.lanes:
            return None
        # The second factor is signed whatever type data have.
        right_zero = right.zero - (128 if self._dot.data_type == "uint8" else 0)
        # No term is larger than all together would be if none cancelled another.
        largest = np.iinfo(self._dot.data_type).max + 1 + abs(left.zero)
        if largest * (128 + abs(right_zero)) * length > _LARGEST_SUM:
            return None
        packed = self._emit(integer_compute.packed, right.data, dot=self._dot)
        data = self._emit(integer_compute.matmul, left.data, packed, dot=self._dot)
        of_rows = self._emit(integer_compute.sums_of_rows, left.data)
        of_columns = self._emit(integer_compute.sums_of_columns, packed)
        zeros = relax.const(np.array([left.zero, right_zero, left.zero * right_zero * length], np.int32))
        scale = _floats(left.scale * right.scale)
        return self._emit(integer_compute.scaled_with_both, data, of_rows, of_columns, zeros, scale)

    def _quantise(self, call: Any) -> Any | None:
        """One function for all of `spell_out_quantisation`'s, bias and clipping before it included."""
        added = self._match(call.args[0], "relax.add")
        level = self._match(added[0], "relax.round") if added else None
        below = self._match(level[0], "relax.minimum") if level else None
        above = self._match(below[0], "relax.maximum") if below else None
        steps = self._match(above[0], "relax.multiply") if above else None
        numbers = [_number_of(found[1]) for found in (added, below, above, steps) if found]
        if steps is None or len(numbers) < 4 or None in numbers:
            return None
        zero, high, low, inverse = (float(number) for number in numbers if number is not None)
        own = np.iinfo(self._dot.data_type)
        least, most = own.min - zero, own.max - zero
        if not self._is_level(zero) or low < least or high > most or inverse <= 0:
            return None
        if call.ty.ndim != steps[0].ty.ndim or str(steps[0].ty.dtype) != "float32":
            return None
        levels = self._levels_of(steps[0])
        same = levels is not None and levels.zero == zero and abs(levels.scale * inverse - 1) < _SAME_SCALE
        if levels is not None and same and (low, high) == (least, most):
            return levels.data
        value, low, high = self._without_clipping(steps[0], low, high, inverse)
        sums = self._with_bias(value)
        limits = relax.const(np.array([low, high], np.float32))
        own_zero = self._zero(int(zero))
        if sums is None:
            result = self._emit(integer_compute.quantised, value, _floats(inverse), limits, own_zero)
            if (function := self._function_of(call.args[0])) is not None:
                self._functions[result] = function.then(function.values.astype(self._dot.data_type))
            return result
        scale = (sums.scale * np.float32(inverse)).astype(np.float32)
        if (np.abs(scale) * (sums.largest + np.abs(sums.offset))).max(initial=0) < integer_compute.MOST_ROUNDED:
            limits = relax.const(integer_compute.rounded_limits(low, high))
        parameters = _of_type(sums), _floats(scale), limits, own_zero
        return self._emit(integer_compute.requantised, sums.data, *parameters, columns=sums.columns)

    def _without_clipping(self, value: Any, low: float, high: float, inverse: float) -> tuple[Any, float, float]:
        """The value before ReLU and the like, which narrow the range of levels."""
        while True:
            call = self._definition(value)
            name = _name(call)
            bound = _number_of(call.args[1]) if name in ("relax.maximum", "relax.minimum") else None
            if bound is not None and call.args[0].ty.ndim != call.ty.ndim:
                return value, low, high
            if name == "relax.nn.relu" or (bound is not None and name == "relax.maximum"):
                low = min(max(low, (bound or 0.0) * inverse), high)
            elif bound is not None:
                high = max(min(high, bound * inverse), low)
            else:
                return value, low, high
            value = call.args[0]

    def _with_bias(self, value: Any) -> Sums | None:
        """The sums of which `value` is the product, with a bias that was added to it."""
        if (sums := self._sums_of(value)) is not None:
            return sums
        added = self._match(value, "relax.add")
        sums = self._sums_of(added[0]) if added else None
        bias = self._constant_of(added[1]) if added else None
        if added is None or sums is None or bias is None or bias.size not in (1, sums.columns):
            return None
        if bias.shape[-1:] not in ((), (bias.size,)) or bias.ndim > added[0].ty.ndim:
            return None
        steps = np.broadcast_to(bias.reshape(-1).astype(np.float64), (sums.columns,)) / sums.scale
        offset = sums.offset + (steps if sums.offset.dtype == np.float32 else np.rint(steps))
        if not np.isfinite(offset).all() or (sums.largest + np.abs(offset)).max(initial=0) > _LARGEST_SUM:
            return None
        return replace(sums, offset=offset.astype(sums.offset.dtype))

    def _sums_of(self, value: Any) -> Sums | None:
        return self._sums.get(self._origin(value)) if isinstance(value, relax.Var) else None

    def _levels_of(self, value: Any) -> Levels | None:
        """What a dequantisation as `spell_out_quantisation` writes it reads."""
        if isinstance(value, relax.Var):
            return self._levels.get(self._origin(value))
        if (found := self._centred_bytes(value)) is None:
            return None
        data, of_zero, scale = found
        zero = _number_of(of_zero)
        return Levels(data, scale, int(zero)) if zero is not None and self._is_level(zero) else None

    def _centred_bytes(self, value: Any) -> tuple[Any, Any, float] | None:
        """(data, zero, scale) of (data - zero) * scale in float32, data being bytes of the same shape."""
        scaled = self._match(value, "relax.multiply")
        centred = self._match(scaled[0], "relax.subtract") if scaled else None
        cast = self._match(centred[0], "relax.astype") if centred else None
        scale = _number_of(scaled[1]) if scaled else None
        if scaled is None or centred is None or cast is None or scale is None or not 0 < scale < np.inf:
            return None
        (data,) = cast
        if str(data.ty.dtype) != self._dot.data_type or str(scaled[0].ty.dtype) != "float32":
            return None
        # A number of more axes than the data have would give the result more.
        if scaled[1].ty.ndim > data.ty.ndim or centred[1].ty.ndim > data.ty.ndim:
            return None
        return data, centred[1], scale

    def _is_level(self, zero: float) -> bool:
        limits = np.iinfo(self._dot.data_type)
        return zero.is_integer() and limits.min <= zero <= limits.max

    def _weights_of(self, value: Any) -> Weights | None:
        """Constant bytes of zero point 0 behind a dequantisation and transposes."""
        call = self._definition(value)
        if _name(call) == "relax.permute_dims":
            inner = self._weights_of(call.args[0])
            axes = [int(axis) for axis in call.attrs.axes] if call.attrs.axes is not None else None
            if inner is None:
                return None
            axes = axes or list(range(inner.data.ndim))[::-1]
            return Weights(inner.data.transpose(axes), inner.scale, axes.index(inner.axis))
        if _name(call) != "relax.dequantize" or not all(map(is_constant, call.args)):
            return None
        data, scale, zero = (argument.value.numpy() for argument in call.args)
        if data.dtype == np.uint8 and (zero == 128).all():
            data, zero = (data.astype(np.int16) - 128).astype(np.int8), np.zeros_like(zero)
        if data.dtype != np.int8 or zero.any():
            return None
        return Weights(data, scale.reshape(-1), int(call.attrs.axis) % max(data.ndim, 1))

    def _constant_of(self, value: Any) -> Array | None:
        """A tensor known now."""
        call = self._definition(value)
        if is_constant(call):
            return np.asarray(call.value.numpy())
        inner = self._constant_of(call.args[0]) if _name(call) in _CONSTANT and call.args else None
        if inner is None:
            return None
        if _name(call) == "relax.permute_dims":
            return inner.transpose([int(axis) for axis in call.attrs.axes])
        if _name(call) == "relax.reshape":
            return inner.reshape([int(extent) for extent in call.ty.shape])
        scale, zero = (self._constant_of(argument) for argument in call.args[1:3])
        if scale is None or zero is None:
            return None
        shape = [-1 if axis == int(call.attrs.axis) % inner.ndim else 1 for axis in range(inner.ndim)]
        scale, zero = (one.reshape(shape) if one.size > 1 else one.reshape(-1) for one in (scale, zero))
        return (inner.astype(np.int64) - zero.astype(np.int64)).astype(np.float64) * scale

    def _zero(self, zero: int) -> Any:
        return relax.const(np.array([zero], self._dot.data_type))

    def _match(self, value: Any, name: str) -> Any | None:
        """The arguments of the call of `name` that gives `value`."""
        call = self._definition(value)
        return call.args if _name(call) == name else None

    def _origin(self, variable: Any) -> Any:
        while isinstance(found := self.lookup_binding(variable), relax.Var):
            variable = found
        return variable

    def _definition(self, value: Any) -> Any:
        return self.lookup_binding(self._origin(value)) if isinstance(value, relax.Var) else value


# What a product of two activations needs before it starts.
_APART = dict.fromkeys(("packed", "sums_of_rows", "sums_of_columns"), OPAQUE)
_SAME_SCALE = 1e-6
# Operators that choose among the levels of a tensor, of which it does not matter whether they come before or after.
_KEEPS_LEVELS = (
    "relax.permute_dims",
    "relax.reshape",
    "relax.nn.max_pool2d",
    "relax.strided_slice",
    "relax.squeeze",
    "relax.expand_dims",
    "relax.flatten",
)
_CONSTANT = ("relax.permute_dims", "relax.reshape", "relax.dequantize")


def _largest(weights: Array, reduced: tuple[int, ...]) -> Array:
    """For each column, the largest sum of products with bytes that there can be."""
    return np.asarray(np.abs(weights.astype(np.float64)).sum(axis=reduced) * 255)


def _same_shape(a: Any, b: Any) -> bool:
    return a.ty.shape is not None and bool(tvm_ffi.structural_equal(a.ty.shape, b.ty.shape))


def _of_type(sums: Sums) -> Any:
    return relax.const(np.ascontiguousarray(sums.offset))


def _floats(values: Any) -> Any:
    return relax.const(np.ascontiguousarray(np.atleast_1d(np.asarray(values, np.float32))))


def _number_of(value: Any) -> float | None:
    if not is_constant(value) or (array := value.value.numpy()).size != 1:
        return None
    return float(array.reshape(-1)[0])


def _name(value: Any) -> str:
    return str(value.op.name) if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) else ""


def _pair(values: Any) -> tuple[int, int]:
    first, *rest = (int(value) for value in values)
    return first, rest[0] if rest else first


def _four(values: Any) -> tuple[int, int, int, int]:
    numbers = [int(value) for value in values]
    top, left, bottom, right = numbers * (4 // len(numbers))
    return top, left, bottom, right
