"""Half precision: converts a float32 model to products of float16, as tensor cores compute them.

Matmuls and convolutions take float16 and accumulate in float32; element-wise operators have the type of their inputs;
sums over many elements and exponentials stay in float32. The model's inputs and outputs keep their types.
"""

from __future__ import annotations

import tvm
from tvm.relax import transform

from slipstream.machine.target import Target


def cast_to_half(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The module in the target's `dtype`."""
    return transform.ToMixedPrecision("float32")(mod) if target.is_half else mod
