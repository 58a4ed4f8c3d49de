"""Named pipelines beside TVM's own: its passes from scheduled TIR to machine code, with others near the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tvm
from tvm import s_tir, tirx
from tvm.tirx import compilation_pipeline

from slipstream.tvm_bridge.nodes import nodes

HostPass: TypeAlias = Callable[[tirx.PrimFunc], tirx.PrimFunc]


def register_pipeline(
    name: str, host_passes: Mapping[str, HostPass], keeps_bfloat16: Callable[[tirx.PrimFunc], bool] = lambda func: False
) -> None:
    """Add a pipeline to TVM's table, which has no function for it, with `host_passes` before its last on host code.

    TVM's own passes for bfloat16 leave the functions that `keeps_bfloat16` is true of alone.
    """

    def finalize_host() -> Any:
        ours = [_as_pass(pass_name, change) for pass_name, change in host_passes.items()]
        return tvm.transform.Sequential([*ours, tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin()])

    def pipeline() -> tuple[Any, Any, Any]:
        stock, _, finalize_device = tirx.get_tir_pipeline("default")
        return _lowered_apart(stock, keeps_bfloat16), finalize_host, finalize_device

    compilation_pipeline.PIPELINE_MAP[name] = pipeline


def _as_pass(name: str, change: HostPass) -> Any:
    return tirx.transform.prim_func_pass(lambda func, mod, ctx: change(func), opt_level=0, name=name)


_FOR_BFLOAT16 = ("tirx.BF16ComputeLegalize", "tirx.BF16StorageLegalize")


def _lowered_apart(stock: Any, keeps_bfloat16: Callable[[tirx.PrimFunc], bool]) -> Any:
    """TVM's lowering, with other settings for functions that use tensor cores, and for those that keep bfloat16.

    The former share memory between tiles of different types, which only `merge_static_smem` allows, and it breaks
    others.
    """

    def lower(mod: tvm.IRModule, ctx: Any) -> tvm.IRModule:
        tensor = {name: func for name, func in mod.functions.items() if _uses_tensor_cores(func)}
        short = {
            name: func
            for name, func in mod.functions.items()
            if name not in tensor and isinstance(func, tirx.PrimFunc) and _is_for_cpu(func) and keeps_bfloat16(func)
        }
        others = {name: func for name, func in mod.functions.items() if name not in tensor and name not in short}
        disabled, config = list(ctx.disabled_pass), dict(ctx.config.items())
        lowered: dict[Any, Any] = {}
        for functions, passes, settings in (
            (tensor, disabled, {**config, "tirx.merge_static_smem": True}),
            (short, [*disabled, *_FOR_BFLOAT16], config),
            (others, disabled, config),
        ):
            if functions:
                with tvm.transform.PassContext(opt_level=ctx.opt_level, disabled_pass=passes, config=settings):
                    lowered |= dict(stock(tvm.IRModule(functions, attrs=mod.attrs)).functions.items())
        return tvm.IRModule(lowered, attrs=mod.attrs)

    return tvm.transform.module_pass(lower, opt_level=0, name="slipstream.Lower")


def _is_for_cpu(func: tirx.PrimFunc) -> bool:
    target = func.attrs.get("target") if func.attrs else None
    return target is None or str(target.kind.name) == "llvm"


def _uses_tensor_cores(func: Any) -> bool:
    target = func.attrs.get("target") if isinstance(func, tirx.PrimFunc) and func.attrs else None
    if target is None or str(target.kind.name) != "cuda":
        return False
    buffers = [buffer for block in nodes(func.body, s_tir.SBlock) for buffer in block.alloc_buffers]
    return any(buffer.scope().startswith("wmma") for buffer in buffers)
