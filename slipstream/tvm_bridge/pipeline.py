"""Named pipelines beside TVM's own: its passes from scheduled TIR to machine code, with others near the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import compilation_pipeline

HostPass: TypeAlias = Callable[[tirx.PrimFunc], tirx.PrimFunc]


def register_pipeline(name: str, host_passes: Mapping[str, HostPass]) -> None:
    """Add a pipeline to TVM's table, which has no function for it, with `host_passes` before its last on host code."""

    def finalize_host() -> Any:
        ours = [_as_pass(pass_name, change) for pass_name, change in host_passes.items()]
        return tvm.transform.Sequential([*ours, tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin()])

    def pipeline() -> tuple[Any, Any, Any]:
        stock, _, finalize_device = tirx.get_tir_pipeline("default")
        return _tensor_cores_apart(stock), finalize_host, finalize_device

    compilation_pipeline.PIPELINE_MAP[name] = pipeline


def _as_pass(name: str, change: HostPass) -> Any:
    return tirx.transform.prim_func_pass(lambda func, mod, ctx: change(func), opt_level=0, name=name)


def _tensor_cores_apart(stock: Any) -> Any:
    """TVM's lowering, with another setting for functions that use tensor cores.

    These share memory between tiles of different types, which only `merge_static_smem` allows, and it breaks others.
    """

    def lower(mod: tvm.IRModule, ctx: Any) -> tvm.IRModule:
        tensor = {name: func for name, func in mod.functions.items() if _uses_tensor_cores(func)}
        if not tensor:
            return stock(mod)
        others = {name: func for name, func in mod.functions.items() if name not in tensor}
        config = {**dict(ctx.config.items()), "tirx.merge_static_smem": True}
        with tvm.transform.PassContext(opt_level=ctx.opt_level, disabled_pass=ctx.disabled_pass, config=config):
            lowered = dict(stock(tvm.IRModule(tensor, attrs=mod.attrs)).functions.items())
        if others:
            lowered |= dict(stock(tvm.IRModule(others, attrs=mod.attrs)).functions.items())
        return tvm.IRModule(lowered, attrs=mod.attrs)

    return tvm.transform.module_pass(lower, opt_level=0, name="slipstream.Lower")


def _uses_tensor_cores(func: Any) -> bool:
    target = func.attrs.get("target") if isinstance(func, tirx.PrimFunc) and func.attrs else None
    if target is None or str(target.kind.name) != "cuda":
        return False
    found: list[Any] = []

    def note(block: Any) -> None:
        found.extend(buffer for buffer in block.alloc_buffers if buffer.scope().startswith("wmma"))

    tvm_ffi.structural_walk(func.body, ((s_tir.SBlock, note),))
    return bool(found)
