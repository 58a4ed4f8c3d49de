"""Largest and smallest elements, and where they are, among numbers that may all be infinite.

TVM's own start from a finite number, at index -1, which an infinite one does not replace, nor an equal one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from slipstream.graph.extents import are_known

Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _extreme(name: str, combine: Callable[..., Any], least: float, stock: Callable[..., te.Tensor]) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        axes = None if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
        if not str(call.ty.dtype).startswith("float"):
            return builder.call_te(stock, call.args[0], axes, call.attrs.keepdims)
        reducer = te.comm_reducer(combine, lambda dtype: tirx.const(least, dtype), name=name)

        def reduce(x: te.Tensor) -> te.Tensor:
            rank = len(x.shape)
            along = [axis % rank for axis in (range(rank) if axes is None else axes)]
            reduced = [te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in along]
            kept = [1 if axis in along else x.shape[axis] for axis in range(rank)]

            def element(*index: Any) -> Any:
                free = list(index) if call.attrs.keepdims else _with_zeros(index, along, rank)
                for axis, variable in zip(along, reduced, strict=True):
                    free[axis] = variable
                return reducer(x(*free), axis=reduced)

            shape = kept if call.attrs.keepdims else [n for axis, n in enumerate(kept) if axis not in along]
            return te.compute(shape, element, name=name)

        return builder.call_te(reduce, call.args[0], primfunc_name_hint=name)

    return legalize


def _with_zeros(index: tuple[Any, ...], along: list[int], rank: int) -> list[Any]:
    rest = iter(index)
    return [0 if axis in along else next(rest) for axis in range(rank)]


def _place(stock: Callable[..., te.Tensor]) -> Legalizer:
    """Where none is better than TVM's start they are taken for equal: the first is at 0. An infinite start, or one at
    0, would make the compiled loop four times as slow."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        axis = None if call.attrs.axis is None else int(call.attrs.axis)

        def find(x: te.Tensor) -> te.Tensor:
            found = stock(x, axis, call.attrs.keepdims)
            return topi.maximum(found, tirx.const(0, found.dtype))

        return builder.call_te(find, call.args[0], primfunc_name_hint=call.op.name.rpartition(".")[2])

    return legalize


def _max_pool(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attributes, shape, dtype = call.attrs, call.args[0].ty.shape, str(call.ty.dtype)
    layout = str(attributes.layout)
    axes = [axis for axis, letter in enumerate(layout) if letter in "DHW"]
    if attributes.out_layout != layout or not layout.isalpha() or "float" not in dtype or not are_known(shape):
        return call.op.get_attr("FLegalize")(builder, call)
    windows, strides, steps, padding = (
        [int(number) for number in numbers]
        for numbers in (attributes.pool_size, attributes.strides, attributes.dilation, attributes.padding)
    )
    before, after = ([tirx.const(0, "int64")] * len(shape) for _ in range(2))
    for axis, window, stride, step, begin in zip(axes, windows, strides, steps, padding[: len(axes)], strict=True):
        read = (int(call.ty.shape[axis]) - 1) * stride + (window - 1) * step + 1
        before[axis] = tirx.const(begin, "int64")
        after[axis] = tirx.const(max(0, read - begin - int(shape[axis])), "int64")
    least = tirx.const(-math.inf, dtype)
    reducer = te.comm_reducer(lambda a, b: tirx.max(a, b), lambda _: least, name="max")

    def pool(x: te.Tensor) -> te.Tensor:
        if any(int(rows) for rows in (*before, *after)):
            x = topi.nn.pad(x, before, after, least, name="pad_temp")
        inside = [te.reduce_axis((0, tirx.const(window, "int64")), name=f"rv{i}") for i, window in enumerate(windows)]

        def element(*index: Any) -> Any:
            place = list(index)
            for axis, stride, step, offset in zip(axes, strides, steps, inside, strict=True):
                place[axis] = index[axis] * stride + offset * step
            return reducer(x(*place), axis=inside)

        return te.compute(call.ty.shape, element, name="pool_max")

    return builder.call_te(pool, call.args[0], primfunc_name_hint=call.op.name.rpartition(".")[2])


LEGALIZERS: dict[str, Legalizer] = {
    "relax.max": _extreme("max", lambda a, b: tirx.max(a, b), -math.inf, topi.max),
    "relax.min": _extreme("min", lambda a, b: tirx.min(a, b), math.inf, topi.min),
    "relax.argmax": _place(topi.argmax),
    "relax.argmin": _place(topi.argmin),
    **{f"relax.nn.max_pool{rank}d": _max_pool for rank in (1, 2, 3)},
}
