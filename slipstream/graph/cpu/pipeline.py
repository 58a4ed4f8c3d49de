"""Our passes at the end of TVM's lowering to LLVM: bfloat16 is spelt out, AMX tiles get registers, other register tiles
stay on the stack, weights are prefetched.

TVM moves every local buffer of a kilobyte or more to the heap, where LLVM cannot turn it into registers. The 28 vector
registers a large tile of sums may take up on AVX-512 are 1,792 bytes.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from slipstream.graph.cpu.bfloat16_code import only_stores_bfloat16, spell_out_bfloat16
from slipstream.graph.cpu.dot_product import use_pair_instruction
from slipstream.graph.cpu.prefetch import prefetch_weights
from slipstream.graph.cpu.tile_registers import use_tile_registers
from slipstream.graph.extents import are_known
from slipstream.tvm_bridge.pipeline import register_pipeline

NAME = "slipstream"
# All vector registers of the largest kind, 32 of 64 bytes, or the float32 totals of as many of halves. Anything larger
# is no register tile. The sums of all AMX tiles that there can be at once are 6,144 bytes.
STACK_BYTES = 6144

_STAYS_ON_STACK = "disable_lower_builtin"


def stack_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Mark small local buffers so that TVM leaves them on the stack."""
    return func.with_body(tvm_ffi.structural_map(func.body, ((tirx.AllocBuffer, _marked),)))


def _marked(alloc: Any) -> Any:
    buffer = alloc.buffer
    if buffer.scope() != "global" or not are_known(buffer.shape):
        return alloc
    size = tvm.DataType(buffer.dtype).itemsize  # of all lanes
    for extent in buffer.shape:
        size *= int(extent)
    if not 0 < size <= STACK_BYTES:
        return alloc
    annotations = {**dict(alloc.annotations.items()), _STAYS_ON_STACK: tirx.IntImm("int32", 1)}
    return tirx.AllocBuffer(buffer, annotations)


register_pipeline(
    NAME,
    {
        "slipstream.Bfloat16": spell_out_bfloat16,
        "slipstream.PairProducts": use_pair_instruction,
        "slipstream.TileRegisters": use_tile_registers,
        "slipstream.StackTiles": stack_tiles,
        "slipstream.PrefetchWeights": prefetch_weights,
    },
    keeps_bfloat16=only_stores_bfloat16,
)
