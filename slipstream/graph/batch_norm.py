"""Inference-time batch norm, folded into the convolution before it, or one multiply and one add.

y = gamma * (x - mean) / sqrt(var + eps) + beta = x * scale + shift
scale = gamma / sqrt(var + eps),  shift = beta - mean * scale     (at compile time, in float64)
(conv(x, W) + b) * scale + shift = conv(x, W * scale) + (b * scale + shift)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import TupleGetItemPattern, is_const, is_op, rewrite_call, wildcard

from slipstream.graph.relax_walk import with_main

Array = np.ndarray[Any, Any]
_RANK = 4


def fold_batch_norm(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite every batch norm with constant statistics in `main`."""
    main = mod["main"]
    for with_conv, with_bias in ((True, True), (True, False), (False, False)):
        main = _rewrite(main, with_conv, with_bias)
    return relax.transform.DeadCodeElimination()(with_main(mod, main))


def _rewrite(main: relax.Function, with_conv: bool, with_bias: bool) -> relax.Function:
    data, weight, bias = wildcard(), is_const(), is_const()
    conv = is_op("relax.nn.conv2d")(data, weight)
    normalised = (is_op("relax.add")(conv, bias) if with_bias else conv) if with_conv else data
    statistics = [is_const() for _ in range(4)]
    batch_norm = is_op("relax.nn.batch_norm")(normalised, *statistics)

    def fold(original: Any, matched: Any) -> Any:
        attributes = matched[batch_norm].attrs
        scale, shift = _scale_and_shift([_value(matched[pattern]) for pattern in statistics], attributes)
        x = matched[data]
        if not with_conv:
            axes = [1] * len(x.ty.shape)
            axes[int(attributes.axis)] = -1
            return relax.op.add(
                relax.op.multiply(x, _constant(scale.reshape(axes), x)), _constant(shift.reshape(axes), x)
            )
        call = matched[conv]
        layouts = call.attrs.data_layout, call.attrs.kernel_layout, call.attrs.out_layout
        if layouts != ("NCHW", "OIHW", "NCHW") or int(attributes.axis) != 1:
            return original
        if with_bias:
            offset = _value(matched[bias])
            if not _is_for_channels(offset, scale.size):
                return original
            shift = offset.reshape(-1) * scale + shift
        scaled = _constant(_value(matched[weight]) * scale.reshape(-1, 1, 1, 1), x)
        return relax.op.add(relax.Call(call.op, [x, scaled], call.attrs), _constant(shift.reshape(1, -1, 1, 1), x))

    return rewrite_call(TupleGetItemPattern(batch_norm, 0), fold, main)


def _scale_and_shift(statistics: list[Array], attributes: Any) -> tuple[Array, Array]:
    gamma, beta, mean, variance = statistics
    scale = (gamma if attributes.scale else 1.0) / np.sqrt(variance + attributes.epsilon)
    return scale, (beta if attributes.center else 0.0) - mean * scale


def _is_for_channels(offset: Array, channels: int) -> bool:
    """Whether what is added to an image in NCHW is one number, or one for each channel."""
    if offset.size == 1:
        return offset.ndim <= _RANK
    return offset.shape in ((channels, 1, 1), (1, channels, 1, 1))


def _value(constant: Any) -> Array:
    value: Array = constant.value.numpy().astype(np.float64)
    return value


def _constant(value: Array, like: Any) -> Any:
    dtype = str(like.ty.dtype)
    return relax.const(value.astype(dtype), dtype)
