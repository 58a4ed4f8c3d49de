"""Convolutions and matmuls in bfloat16 on a CPU: weights in the order in which an instruction multiplies pairs.

Instructions add two neighbouring products of bfloat16 to a float32 sum, so two neighbouring weights of a filter are
stored beside each other. Nothing is rounded here: `graph/storage_type.py` does that once operators are fused.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.cpu.integer_compute import Window, convolution, matmul
from slipstream.graph.extents import are_known
from slipstream.graph.fuse import ELEMENT_WISE, KNOWN_PATTERN, OPAQUE, PRODUCT
from slipstream.graph.relax_walk import cleaned, rewritten
from slipstream.machine.dot_product import PAIRS
from slipstream.machine.target import Target

_CONVOLUTION, _MATMUL = (tvm.ir.Op.get(f"relax.{name}") for name in ("nn.conv2d", "matmul"))
# Of a product of two activations: with fewer rows, packing the second takes longer than it saves.
_FEWEST_ROWS = 8


def use_pairs(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Give the products of a module in bfloat16 for a CPU packed weights, and packed second operands."""
    if target.gpu is not None or target.dtype != PAIRS.data_type:
        return mod
    return cleaned(rewritten(mod, _PairProducts(mod, list(mod["main"].params))))


@mutator
class _PairProducts(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, inputs: list[Any]) -> None:
        super().__init__(mod)
        self._inputs = inputs

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == _CONVOLUTION and _is_static(call):
            return self._convolution(call)
        if call.op == _MATMUL and _is_static(call):
            return self._matmul(call)
        return call

    def _convolution(self, call: Any) -> Any:
        attributes = call.attrs
        layouts = attributes.data_layout, attributes.kernel_layout, attributes.out_layout
        data, weights = call.args
        filters, kernel_y, kernel_x, depth = (int(extent) for extent in weights.ty.shape)
        groups, dilation = int(attributes.groups), _two(attributes.dilation)
        in_rows = depth % PAIRS.group != 0
        if layouts != ("NHWC", "OHWI", "NHWC") or (in_rows and (groups > 1 or dilation[1] > 1)):
            return call
        if groups > 1 and (filters // groups) % PAIRS.lanes:
            return call
        top, left, bottom, right = (int(amount) for amount in attributes.padding)
        window = Window((kernel_y, kernel_x), _two(attributes.strides), (top, left, bottom, right), dilation, groups)
        packed = self._emit(_pack_rows_of_pixels if in_rows else _pack_filters, OPAQUE, weights)
        whole = self._emit(_convolution, PRODUCT, self._stored(data), packed, window=window)
        return self._cropped(whole, filters)

    def _matmul(self, call: Any) -> Any:
        data, weights = call.args
        *batch, rows, length = (int(extent) for extent in data.ty.shape)
        *other, _, columns = (int(extent) for extent in weights.ty.shape)
        if other and (batch != other or rows < _FEWEST_ROWS or columns % PAIRS.lanes or length % PAIRS.group):
            return call
        packed = self._emit(_pack_columns, OPAQUE, weights)
        whole = self._emit(_matmul, PRODUCT, self._stored(data), packed)
        return self._cropped(whole, columns)

    def _stored(self, data: Any) -> Any:
        """`data`, or a copy of an input of the model, which itself stays in float32."""
        return self._emit(_copy, OPAQUE, data) if any(data.same_as(each) for each in self._inputs) else data

    def _cropped(self, whole: Any, columns: int) -> Any:
        if int(whole.ty.shape[-1]) == columns:
            return whole
        return self._emit(_crop, ELEMENT_WISE, whole, columns=columns)

    def _emit(self, function: Any, pattern: int, *tensors: Any, **settings: Any) -> Any:
        call = self.builder_.call_te(
            partial(function, **settings),
            *tensors,
            primfunc_name_hint=function.__name__.lstrip("_"),
            primfunc_attrs={KNOWN_PATTERN: pattern},
        )
        return self.builder_.emit(call)


def _convolution(data: Any, weights: Any, window: Window) -> Any:
    return convolution(data, weights, None, window, PAIRS)


def _matmul(data: Any, weights: Any) -> Any:
    return matmul(data, weights, PAIRS)


def _pack_filters(weights: Any) -> Any:
    """(filters, height, width, depth) as (vectors, height, width, pairs, lanes, 2), filled up with zeros."""
    filters, height, width, depth = (int(extent) for extent in weights.shape)

    def weight(vector: Any, y: Any, x: Any, pair: Any, lane: Any, place: Any) -> Any:
        f = vector * PAIRS.lanes + lane
        value = weights[f, y, x, pair * PAIRS.group + place]
        return value if filters % PAIRS.lanes == 0 else tirx.if_then_else(f < filters, value, tirx.const(0, "float32"))

    shape = (_whole(filters), height, width, depth // PAIRS.group, PAIRS.lanes, PAIRS.group)
    return te.compute(shape, weight, name="packed")


def _pack_rows_of_pixels(weights: Any) -> Any:
    """The same with the channels of neighbouring pixels as one axis, filled up with zeros."""
    filters, height, width, channels = (int(extent) for extent in weights.shape)
    length = width * channels
    pairs = -(-length // (2 * PAIRS.group)) * 2

    def weight(vector: Any, y: Any, _: Any, pair: Any, lane: Any, place: Any) -> Any:
        f, at = vector * PAIRS.lanes + lane, pair * PAIRS.group + place
        inside = tirx.all(f < filters, at < length)
        return tirx.if_then_else(inside, weights[f, y, at // channels, at % channels], tirx.const(0, "float32"))

    return te.compute((_whole(filters), height, 1, pairs, PAIRS.lanes, PAIRS.group), weight, name="packed")


def _pack_columns(weights: Any) -> Any:
    """(..., length, columns) as (..., vectors, pairs, lanes, 2), with zeros where one is not full."""
    *batch, length, columns = (int(extent) for extent in weights.shape)

    def weight(*at: Any) -> Any:
        *own, vector, pair, lane, place = at
        column, row = vector * PAIRS.lanes + lane, pair * PAIRS.group + place
        value = weights[(*own, row, column)]
        inside = [] if columns % PAIRS.lanes == 0 else [column < columns]
        inside += [] if length % PAIRS.group == 0 else [row < length]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "float32")) if inside else value

    shape = (*batch, _whole(columns), -(-length // PAIRS.group), PAIRS.lanes, PAIRS.group)
    return te.compute(shape, weight, name="packed")


def _copy(data: Any) -> Any:
    return te.compute(data.shape, lambda *at: data[at], name="copy")


def _crop(whole: Any, columns: int) -> Any:
    """The first columns: element by element, so that TVM fuses it with the product."""
    return te.compute((*whole.shape[:-1], columns), lambda *at: whole[at], name="crop")


def _whole(columns: int) -> int:
    return -(-columns // PAIRS.lanes)


def _two(values: Any) -> tuple[int, int]:
    first, second = (int(value) for value in values)
    return first, second


def _is_static(call: Any) -> bool:
    """Whether a product is of float32 tensors of known shapes, two axes or more each."""
    return all(
        isinstance(each.ty, relax.TensorType)
        and str(each.ty.dtype) == "float32"
        and isinstance(each.ty.shape, relax.ShapeExpr)
        and len(each.ty.shape) > 1
        and are_known(each.ty.shape)
        for each in call.args
    )
