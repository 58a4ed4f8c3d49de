"""Half precision: a float32 model computed with products of float16, the way tensor cores want it.

Matmuls and convolutions take float16 and add up in float32; what is merely element-wise follows its inputs; sums over
many elements, exponentials and their kin stay in float32. What goes into the model and what comes out keeps its type.
"""

from __future__ import annotations

import tvm
from tvm.relax import transform

from slipstream.machine.target import Target


def cast_to_half(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The module in the target's `dtype`."""
    return transform.ToMixedPrecision("float32")(mod) if target.is_half else mod
