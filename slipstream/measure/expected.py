"""What an operator should compute: random inputs, and what its own function makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from numpy.random import default_rng  # NumPy loads it when it is first used, which would be in every worker
from tvm import tirx

from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.graph.operators import count_flops
from slipstream.machine.target import Target
from slipstream.measure.arena import Array, Layout, plan, random_values
from slipstream.measure.lowering import arguments_of, as_tensor, generate, lower

_FEW_FLOPS = 4e7  # less than a tenth of a second on one core


def layout_of(func: tirx.PrimFunc) -> Layout:
    """The arguments of an unscheduled function, one after another."""
    weights = func.attrs.get("layout_free_buffers", []) if func.attrs else []
    return plan([(a.shape, a.dtype, a.written) for a in arguments_of(func)], [int(index) for index in weights])


def is_small(func: tirx.PrimFunc) -> bool:
    """Whether the function as it is computes its results sooner than its default program is compiled."""
    return count_flops(func) <= _FEW_FLOPS


def build_reference(func: tirx.PrimFunc, target: Target, *, plain: bool) -> Callable[..., None]:
    """The function to compare with: its default program, or `plain`, as it is. It runs once, so that it is optimised
    hardly or not at all."""
    scheduled = func if plain else schedule_default(func, target)
    lowered = lower(tvm.IRModule({"main": scheduled}), target, prepack=False)
    function: Callable[..., None] = generate(lowered, target, optimisation=0 if plain else 1)["main"]
    return function


def fill(arrays: list[Array], layout: Layout, function: Callable[..., None], seed: int) -> None:
    """Random inputs and their results. Should those not be finite, the inputs are positive: it takes roots."""
    for positive in (False, True):
        rng = default_rng(seed)
        for array, slot in zip(arrays, layout.slots, strict=True):
            array[...] = 0 if slot.written else random_values(slot, rng, positive=positive)
        tensors: list[Any] = [as_tensor(array) for array in arrays]
        function(*tensors)
        for array, tensor, slot in zip(arrays, tensors, layout.slots, strict=True):
            if slot.written:
                array[...] = tensor.numpy()
        outputs = [array for array, slot in zip(arrays, layout.slots, strict=True) if slot.written]
        if all(_is_finite(output) for output in outputs):
            return


def _is_finite(array: Array) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float32)).all())
