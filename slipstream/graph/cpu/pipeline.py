"""Our passes at the end of TVM's lowering to LLVM: register tiles stay on the stack, weights are prefetched.

TVM moves every local buffer of a kilobyte or more to the heap, where LLVM cannot turn it into registers. The 28 vector
registers a large tile of sums may take up on AVX-512 are 1,792 bytes.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from slipstream.graph.cpu.prefetch import prefetch_weights
from slipstream.tvm_bridge.pipeline import register_pipeline

NAME = "slipstream"
# All vector registers of the largest kind, 32 of 64 bytes, or the float32 totals of as many of halves. Anything larger
# is no register tile.
STACK_BYTES = 4096

_STAYS_ON_STACK = "disable_lower_builtin"


def stack_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Mark small local buffers so that TVM leaves them on the stack."""
    return func.with_body(tvm_ffi.structural_map(func.body, ((tirx.AllocBuffer, _marked),)))


def _marked(alloc: Any) -> Any:
    buffer = alloc.buffer
    if buffer.scope() != "global" or not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return alloc
    size = tvm.DataType(buffer.dtype).itemsize  # of all lanes
    for extent in buffer.shape:
        size *= int(extent)
    if not 0 < size <= STACK_BYTES:
        return alloc
    annotations = {**dict(alloc.annotations.items()), _STAYS_ON_STACK: tirx.IntImm("int32", 1)}
    return tirx.AllocBuffer(buffer, annotations)


register_pipeline(NAME, {"slipstream.StackTiles": stack_tiles, "slipstream.PrefetchWeights": prefetch_weights})
