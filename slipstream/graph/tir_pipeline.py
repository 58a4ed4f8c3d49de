"""TVM's passes from scheduled TIR to LLVM, with two of ours near the end: register tiles stay on the stack, and
weights are fetched ahead (`prefetch.py`).

TVM moves every local buffer of a kilobyte or more to the heap, where LLVM cannot turn it into registers. The 28 vector
registers a large tile of sums may take up on AVX-512 are 1,792 bytes.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import compilation_pipeline

from slipstream.graph.prefetch import prefetch_weights
from slipstream.target import Target

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


def gpu_config(target: Target) -> dict[str, Any]:
    """What these passes have to be told for a GPU. Tensor cores' programs compile only if their tiles in shared memory
    are one allocation."""
    return {"tirx.merge_static_smem": True} if target.is_half else {}


def _pipeline() -> tuple[Any, Any, Any]:
    stock, _, finalize_device = tirx.get_tir_pipeline("default")
    return stock, finalize_host, finalize_device


compilation_pipeline.PIPELINE_MAP[NAME] = _pipeline
