"""The default GPU program of an operator, before any tuning: a Triton kernel for products on tensor cores, or the first
of TVM's dlight rules that applies.

The rules cover every operator at once, without sampling: matmuls through shared memory, matrix-vector products and
reductions across the threads of a block, anything else with a thread for each element.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from slipstream.errors import TargetError
from slipstream.graph.gpu.triton.templates import schedule_with_triton
from slipstream.machine.target import Target
from slipstream.tvm_bridge.intrinsics import import_tensor_core_intrinsics
from slipstream.tvm_bridge.nodes import nodes

_REFUSALS = (s_tir.schedule.ScheduleError, tvm.error.InternalError, ValueError, TypeError, AttributeError)


def schedule_on_gpu(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """A form of `func` whose loops are bound to threads; `func` itself if no rule fits."""
    if (with_kernel := schedule_with_triton(func, target)) is not None:
        return with_kernel
    if target.is_half:
        import_tensor_core_intrinsics()  # some rules would import all there are
    for rule in _rules():
        scheduled = _apply(rule, func, target)
        if scheduled is not None:
            return scheduled
    _refuse_recurrent(func)
    return func


def _refuse_recurrent(func: tirx.PrimFunc) -> None:
    """The steps of a recurrent layer are a loop over time, which no rule binds to threads."""
    if any(block.name_hint.endswith("_steps") for block in nodes(func.body, s_tir.SBlock)):
        raise TargetError("LSTM, GRU and RNN are compiled for CPUs only: leave out --target cuda")


def _rules() -> list[Any]:
    from tvm.s_tir import dlight

    gpu = dlight.gpu
    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


def _apply(rule: Any, func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    from tvm.s_tir import dlight

    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        with target.tvm:
            scheduled = dlight.ApplyDefaultSchedule(rule)(mod)["main"]
    except _REFUSALS:
        return None
    if not (scheduled.attrs and "tirx.is_scheduled" in scheduled.attrs):
        return None
    if func.attrs and "global_symbol" in func.attrs:
        return scheduled.with_attr("global_symbol", func.attrs["global_symbol"])
    return scheduled.without_attr("global_symbol")
