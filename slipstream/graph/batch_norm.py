"""Inference-time batch norm as one multiply and one add.

y = gamma * (x - mean) / sqrt(var + eps) + beta = x * scale + shift
scale = gamma / sqrt(var + eps),  shift = beta - mean * scale     (computed now, in float64)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import TupleGetItemPattern, is_const, is_op, rewrite_call, wildcard


def batch_norm_to_scale_and_shift(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite every batch norm with constant statistics in `main`."""
    data = wildcard()
    gamma, beta, mean, variance = (is_const() for _ in range(4))
    batch_norm = is_op("relax.nn.batch_norm")(data, gamma, beta, mean, variance)

    def rewrite(original: Any, matched: Any) -> Any:
        attributes = matched[batch_norm].attrs
        x = matched[data]
        constants = (
            matched[pattern].value.numpy().astype(np.float64) for pattern in (gamma, beta, mean, variance)
        )
        g, b, m, v = constants
        scale = (g if attributes.scale else 1.0) / np.sqrt(v + attributes.epsilon)
        shift = (b if attributes.center else 0.0) - m * scale
        broadcast = [1] * len(x.ty.shape)
        broadcast[int(attributes.axis)] = -1
        dtype = str(x.ty.dtype)
        scaled = relax.op.multiply(x, relax.const(scale.reshape(broadcast).astype(dtype)))
        return relax.op.add(scaled, relax.const(shift.reshape(broadcast).astype(dtype)))

    mod = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs, global_infos=mod.global_infos)
    mod["main"] = rewrite_call(TupleGetItemPattern(batch_norm, 0), rewrite, mod["main"])
    return relax.transform.DeadCodeElimination()(mod)
