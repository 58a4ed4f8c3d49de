"""TVM's passes from scheduled TIR to LLVM, with two of ours near the end: register tiles stay on the stack, and
weights are fetched ahead (`prefetch.py`).

TVM moves every local buffer of a kilobyte or more to the heap, where LLVM cannot turn it into registers. The 28 vector
registers a large tile of sums may take up on AVX-512 are 1,792 bytes.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import compilation_pipeline

from slipstream.graph.cpu.prefetch import prefetch_weights

NAME = "slipstream"
# All vector registers of the largest kind: 32 of 64 bytes. Anything larger is no register tile.
STACK_BYTES = 2048

_KEEP = "disable_lower_builtin"


def _keep(alloc: Any) -> Any:
    """Mark a small local buffer so that TVM leaves it on the stack."""
    buffer = alloc.buffer
    if buffer.scope() != "global" or not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return alloc
    size = tvm.DataType(buffer.dtype).itemsize  # of all lanes
    for extent in buffer.shape:
        size *= int(extent)
    if not 0 < size <= STACK_BYTES:
        return alloc
    annotations = {**dict(alloc.annotations.items()), _KEEP: tirx.IntImm("int32", 1)}
    return tirx.AllocBuffer(buffer, annotations)


def _stack_tiles(func: tirx.PrimFunc, mod: tvm.IRModule, ctx: Any) -> tirx.PrimFunc:
    return func.with_body(tvm_ffi.structural_map(func.body, ((tirx.AllocBuffer, _keep),)))


def _prefetch(func: tirx.PrimFunc, mod: tvm.IRModule, ctx: Any) -> tirx.PrimFunc:
    return prefetch_weights(func)


def finalize_host() -> Any:
    """The passes on host code after the pipeline."""
    stack_tiles = tirx.transform.prim_func_pass(_stack_tiles, opt_level=0, name="slipstream.StackTiles")
    prefetch = tirx.transform.prim_func_pass(_prefetch, opt_level=0, name="slipstream.PrefetchWeights")
    stock = [tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin()]
    return tvm.transform.Sequential([stack_tiles, prefetch, *stock])


def _pipeline() -> tuple[Any, Any, Any]:
    stock, _, finalize_device = tirx.get_tir_pipeline("default")

    def lower(mod: tvm.IRModule, ctx: Any) -> tvm.IRModule:
        tensor = {name: func for name, func in mod.functions.items() if _uses_tensor_cores(func)}
        if not tensor:
            return stock(mod)
        others = {name: func for name, func in mod.functions.items() if name not in tensor}
        # These share memory between tiles of different types, which only this setting allows, and it breaks others.
        config = {**dict(ctx.config.items()), "tirx.merge_static_smem": True}
        with tvm.transform.PassContext(opt_level=ctx.opt_level, disabled_pass=ctx.disabled_pass, config=config):
            lowered = dict(stock(tvm.IRModule(tensor, attrs=mod.attrs)).functions.items())
        if others:
            lowered |= dict(stock(tvm.IRModule(others, attrs=mod.attrs)).functions.items())
        return tvm.IRModule(lowered, attrs=mod.attrs)

    whole = tvm.transform.module_pass(lower, opt_level=0, name="slipstream.Lower")
    return whole, finalize_host, finalize_device


def _uses_tensor_cores(func: Any) -> bool:
    target = func.attrs.get("target") if isinstance(func, tirx.PrimFunc) and func.attrs else None
    if target is None or str(target.kind.name) != "cuda":
        return False
    found: list[Any] = []

    def note(block: Any) -> None:
        found.extend(buffer for buffer in block.alloc_buffers if buffer.scope().startswith("wmma"))

    tvm_ffi.structural_walk(func.body, ((s_tir.SBlock, note),))
    return bool(found)


compilation_pipeline.PIPELINE_MAP[NAME] = _pipeline
