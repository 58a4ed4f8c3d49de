"""Pads the filters of convolutions to whole vectors (1,000 classes, 24 channels) and drops the additional results.

A vector of 16 lanes divides neither 1,000 nor 24, so TVM's tiles, which must divide the extent, would use 8 lanes only.
The weights are padded with filters of zeros at compile time; the block after the convolution reads only the original
results.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from slipstream.graph.relax_walk import rewritten
from slipstream.machine.target import Target

_CONVOLUTION = tvm.ir.Op.get("relax.nn.conv2d")
# The least reduction of instructions for which filters are padded.
_LEAST_GAIN = 1.5
# A register tile has several vectors beside each other: so many at best, if that costs little more than whole vectors.
_VECTORS_IN_A_TILE = (4, 2)
_LITTLE_MORE = 1.05


def fill_vectors(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Give every convolution in NHWC whole vectors of filters where that saves instructions; not for a GPU."""
    if target.gpu is not None:
        return mod
    return rewritten(mod, _Filler(mod, target.vector_elements))


def whole_vectors(filters: int, lanes: int) -> int:
    """How many filters to compute instead of `filters`: the same number where more would not be faster."""
    width = math.gcd(filters, lanes)
    vectors = math.ceil(filters / lanes)
    if filters < width * vectors * _LEAST_GAIN:
        return filters
    for group in _VECTORS_IN_A_TILE:
        grouped = math.ceil(vectors / group) * group
        if grouped <= vectors * _LITTLE_MORE:
            return grouped * lanes
    return vectors * lanes


@mutator
class _Filler(PyExprMutator):  # type: ignore[misc]
    """Replaces each such convolution by one of more filters and a function that cuts them off."""

    def __init__(self, mod: tvm.IRModule, lanes: int) -> None:
        super().__init__(mod)
        self._lanes = lanes

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op != _CONVOLUTION or not _can_be_filled(call):
            return call
        filters = int(call.ty.shape[3])
        more = whole_vectors(filters, self._lanes) - filters
        if more == 0:
            return call
        data, weight = call.args
        padded = relax.op.nn.pad(weight, [0, more] + [0] * 6)
        whole = self.builder_.emit(relax.Call(call.op, [data, padded], call.attrs))
        return self.builder_.call_te(_crop, whole, filters, primfunc_name_hint="crop")


def _can_be_filled(call: Any) -> bool:
    attributes = call.attrs
    layouts = attributes.data_layout, attributes.kernel_layout, attributes.out_layout
    static = isinstance(call.ty.shape, relax.ShapeExpr) and all(
        isinstance(extent, tvm.tirx.IntImm) for extent in call.ty.shape
    )
    return static and layouts == ("NHWC", "OHWI", "NHWC") and int(attributes.groups) == 1


def _crop(whole: Any, filters: int) -> Any:
    """The first `filters` results of each pixel: element by element, so that TVM fuses it with the convolution."""
    return te.compute((*whole.shape[:3], filters), lambda n, y, x, f: whole[n, y, x, f], name="crop")
