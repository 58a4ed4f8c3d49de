"""Group norm and instance norm in two passes, the mean first, as TOPI has layer norm.

TOPI takes their variance for the difference of two sums, which has no digits left where the mean is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from slipstream.graph.extents import are_known


def _group_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _legalize(builder, call, call.attrs.num_groups)


def _instance_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _legalize(builder, call, call.args[0].ty.shape[int(call.attrs.channel_axis)])


def _legalize(builder: relax.BlockBuilder, call: relax.Call, groups: Any) -> relax.Expr:
    shape, attributes = call.args[0].ty.shape, call.attrs
    if not are_known(shape):
        return call.op.get_attr("FLegalize")(builder, call)
    channel = int(attributes.channel_axis) % len(shape)
    axes = [int(axis) % len(shape) for axis in attributes.axes]

    def normalise(x: te.Tensor, scale: te.Tensor, shift: te.Tensor) -> te.Tensor:
        if (dtype := x.dtype) == "float16":
            x, scale, shift = (topi.cast(operand, "float32") for operand in (x, scale, shift))
        result = _normalised(x, scale, shift, channel, int(groups), axes, float(attributes.epsilon))
        return topi.cast(result, dtype) if dtype == "float16" else result

    return builder.call_te(normalise, *call.args, primfunc_name_hint=call.op.name.rpartition(".")[2])


def _normalised(
    x: te.Tensor, scale: te.Tensor, shift: te.Tensor, channel: int, groups: int, axes: list[int], epsilon: float
) -> te.Tensor:
    """The channels of each group by their mean and variance over `axes`."""
    extents = x.shape
    size = tirx.floordiv(extents[channel], groups)
    kept = [axis for axis in range(len(extents)) if axis not in axes]
    shape = [tirx.floordiv(extents[axis], size) if axis == channel else extents[axis] for axis in kept]
    count = tirx.const(float(int(size) * math.prod(int(extents[axis]) for axis in axes)), x.dtype)

    def group_of(place: tuple[Any, ...]) -> list[Any]:
        return [tirx.floordiv(place[axis], size) if axis == channel else place[axis] for axis in kept]

    def total(element: Callable[..., Any], name: str) -> te.Tensor:
        def add(*group: Any) -> Any:
            along = {axis: te.reduce_axis((0, extents[axis]), name=f"k{axis}") for axis in axes}
            place = {**dict(zip(kept, group, strict=True)), **along}
            if int(size) > 1:
                along[channel] = te.reduce_axis((0, size), name=f"k{channel}")
                place[channel] = place[channel] * size + along[channel]
            return te.sum(element(*(place[axis] for axis in sorted(place))), [along[axis] for axis in sorted(along)])

        return te.compute(shape, add, name=name)

    added = total(x, "group_sum")
    mean = te.compute(shape, lambda *group: added(*group) / count, name="group_mean")

    def centred(*place: Any) -> Any:
        return x(*place) - mean(*group_of(place))

    spread = total(lambda *place: centred(*place) * centred(*place), "group_spread")

    def result(*place: Any) -> Any:
        # TVM computes an rsqrt of each lane of a vector on its own.
        deviation = tirx.sqrt(spread(*group_of(place)) / count + tirx.const(epsilon, x.dtype))
        return centred(*place) / deviation * scale(place[channel]) + shift(place[channel])

    return te.compute(extents, result, name="group_norm")


LEGALIZERS = {"relax.nn.group_norm": _group_norm, "relax.nn.instance_norm": _instance_norm}
