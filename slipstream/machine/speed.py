"""How fast this machine's CPU is: peak FLOP/s and memory bandwidth, by small compiled programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from slipstream.machine.affinity import stay_on
from slipstream.machine.dot_product import (
    COLUMNS,
    TILE_REGISTERS,
    TILE_ROWS,
    DotProduct,
    TileOperation,
    dot_product_of,
    tile_operation_of,
)
from slipstream.machine.target import Target

# Half a millisecond of work: far more than a call costs, far less than the scheduler lets a thread run.
_STEPS = 100_000
_PEAK_CALLS = 50
_FLOP_PER_MULTIPLY_ADD = 2
# A product of tiles takes 16 cycles.
_TILE_SUMS, _TILE_STEPS = 6, 10_000

_STREAMED_BYTES = 512 * 2**20
_LARGEST_SHARE_OF_MEMORY = 4
_BANDWIDTH_CALLS = 5
_FLOAT_BYTES = 4


def measure_peak_flops(target: Target, seconds: float = 0.5) -> float:
    """FLOP/s that `target.threads` cores reach together on multiply-adds in vector registers: of float16 if the target
    computes in it, of tiles of bfloat16 if it has these and computes in it, else of float32.

    It is timed while the cores are running it, so other work on the machine hardly lowers it. Cores that are
    two threads of one physical core share its peak.
    """
    import numpy as np
    import tvm

    tiles = tile_operation_of(target, target.dtype)
    if tiles is not None:
        return measure_peak_tiles(target, tiles, seconds)
    # Sums for all registers but the factor's and, on a CPU that cannot fuse, the product's.
    shape = (target.vector_registers - 2, target.vector_elements)
    dtype = "float16" if target.dtype == "float16" else "float32"
    kernel = _compile(_multiply_adds(*shape, dtype), target)
    start = (1 + np.random.default_rng(0).random(shape, dtype=np.float32)).astype(dtype)
    # Too small to change a sum, so that none ever overflows, and yet no denormal, which would be slow.
    factor = np.full(shape[1], 2.0**-14 if dtype == "float16" else 1e-9, dtype=dtype)

    def arguments() -> list[Any]:
        return [tvm.runtime.tensor(start), tvm.runtime.tensor(factor)]

    calls_per_second = _call_rate(kernel, arguments, _cores(target), _PEAK_CALLS, seconds)
    return calls_per_second * start.size * _STEPS * _FLOP_PER_MULTIPLY_ADD


def measure_peak_integer_ops(target: Target, seconds: float = 0.5) -> float:
    """The same for 8-bit dot products, a multiplication and an addition counting one each; 0 without such an
    instruction. With tiles, theirs."""
    import numpy as np
    import tvm

    dot = dot_product_of(target)
    tiles = tile_operation_of(target, dot.data_type)
    if tiles is not None:
        return measure_peak_tiles(target, tiles, seconds)
    if not dot.instruction:
        return 0.0
    shape = (target.vector_registers - 2, dot.lanes)
    kernel = _compile(_dot_products(shape[0], dot), target)
    start = np.random.default_rng(0).integers(1, 100, shape).astype(np.int32)
    factor = np.ones(dot.lanes * dot.group, np.int8)

    def arguments() -> list[Any]:
        return [tvm.runtime.tensor(start), tvm.runtime.tensor(factor)]

    calls_per_second = _call_rate(kernel, arguments, _cores(target), _PEAK_CALLS, seconds)
    return calls_per_second * start.size * dot.group * _STEPS * _FLOP_PER_MULTIPLY_ADD


def measure_peak_tiles(target: Target, operation: TileOperation, seconds: float = 0.5) -> float:
    """The same for products of whole tiles."""
    import numpy as np
    import tvm

    kernel = _compile(_tile_products(operation), target)
    # Palette 1, and for each of the registers 64 bytes in a row and 16 rows.
    table = np.zeros(64, np.uint8)
    table[0], table[16:32:2], table[48:56] = 1, 64, TILE_ROWS

    def arguments() -> list[Any]:
        return [tvm.runtime.tensor(table), tvm.runtime.tensor(np.zeros((TILE_ROWS, 64), np.uint8))]

    calls_per_second = _call_rate(kernel, arguments, _cores(target), _PEAK_CALLS, seconds)
    products = _TILE_SUMS * TILE_ROWS * COLUMNS * operation.most_depth
    return calls_per_second * products * _TILE_STEPS * _FLOP_PER_MULTIPLY_ADD


def measure_bandwidth(target: Target, seconds: float = 1.0, size: int = _STREAMED_BYTES) -> float:
    """Bytes/s that `target.threads` cores read and write together in the streaming triad a = b + s * c.

    Counts 12 bytes per element, as STREAM does: the line a store first fetches is not counted. The arrays
    take `size` bytes together, 512 MiB unless given (less on a machine short of memory); few bytes show how
    fast a cache is. Where the last-level cache is not much smaller than 512 MiB, as virtual machines that show
    their host's cache may claim, the figure contains some cache.
    """
    import numpy as np
    import psutil
    import tvm

    size = min(size, int(psutil.virtual_memory().available) // _LARGEST_SHARE_OF_MEMORY)
    cores = _cores(target)
    vectors = size // (3 * _FLOAT_BYTES) // len(cores) // target.vector_lanes
    kernel = _compile(_triad(vectors, target.vector_lanes), target)

    def arguments() -> list[Any]:
        # Zeros are written: pages never written are one and the same page, and old contents may be slow denormals.
        zeros = np.zeros((vectors, target.vector_lanes), dtype=np.float32)
        return [tvm.runtime.empty(zeros.shape, "float32").copyfrom(zeros) for _ in range(3)]

    calls_per_second = _call_rate(kernel, arguments, cores, _BANDWIDTH_CALLS, seconds)
    return calls_per_second * vectors * target.vector_lanes * 3 * _FLOAT_BYTES


def _multiply_adds(chains: int, lanes: int, dtype: str = "float32") -> Any:
    """main(sums, factor): `_STEPS` times, each chain of sums adds factor * (its neighbour's sum).

    A product that changes from step to step cannot be moved out of the loop, and one that is added to the sum
    it replaces is a single instruction on x86-64 and on Arm alike.
    """
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as ir

    with IRBuilder() as builder, ir.prim_func(s_tir=True):
        ir.func_name("main")
        sums = ir.arg("sums", ir.buffer((chains, lanes), dtype))
        factor = ir.arg("factor", ir.buffer((lanes,), dtype))
        # A small buffer per chain: LLVM turns each into a register. TVM would put a larger one, or any of
        # scope "local", on the heap.
        registers = [ir.alloc_buffer((lanes,), dtype, scope="global") for _ in range(chains)]
        for chain, register in enumerate(registers):
            with ir.vectorized(lanes) as lane:
                ir.buffer_store(register, sums[chain, lane], [lane])
        with ir.serial(_STEPS):
            for register, neighbour in zip(registers, registers[1:] + registers[:1], strict=True):
                with ir.vectorized(lanes) as lane:
                    ir.buffer_store(register, register[lane] + neighbour[lane] * factor[lane], [lane])
        for chain, register in enumerate(registers):
            with ir.vectorized(lanes) as lane:
                ir.buffer_store(sums, register[lane], [chain, lane])
    return builder.get()


def _dot_products(chains: int, dot: DotProduct) -> Any:
    """main(sums, factor): `_STEPS` times, each chain of sums adds dot products of its neighbour's bytes and factor."""
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as ir

    lanes, bytes_ = dot.lanes, dot.lanes * dot.group
    whole = [tirx.Ramp(0, 1, lanes)]
    with IRBuilder() as builder, ir.prim_func(s_tir=True):
        ir.func_name("main")
        sums = ir.arg("sums", ir.buffer((chains, lanes), "int32"))
        factor = ir.arg("factor", ir.buffer((bytes_,), "int8"))
        registers = [ir.alloc_buffer((lanes,), "int32", scope="global") for _ in range(chains)]
        for chain, register in enumerate(registers):
            ir.buffer_store(register, sums.vload([chain, 0], f"int32x{lanes}"), whole)
        with ir.serial(_STEPS):
            for register, neighbour in zip(registers, registers[1:] + registers[:1], strict=True):
                data = tirx.reinterpret(f"int8x{bytes_}", neighbour.vload([0], f"int32x{lanes}"))
                operands = register.vload([0], f"int32x{lanes}"), data, factor.vload([0], f"int8x{bytes_}")
                value = tirx.call_llvm_pure_intrin(f"int32x{lanes}", dot.instruction, *operands)
                ir.buffer_store(register, value, whole)
        for chain, register in enumerate(registers):
            ir.buffer_store(sums, register.vload([0], f"int32x{lanes}"), [chain, tirx.Ramp(0, 1, lanes)])
    return builder.get()


def _tile_products(operation: TileOperation) -> Any:
    """main(table, factor): `_TILE_STEPS` times, each tile of sums adds the product of two others."""
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as ir

    def instruction(name: str, *operands: Any) -> None:
        numbers = [tirx.IntImm("int8", each) if isinstance(each, int) else each for each in operands]
        ir.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *numbers))

    with IRBuilder() as builder, ir.prim_func(s_tir=True):
        ir.func_name("main")
        table = ir.arg("table", ir.buffer((64,), "uint8"))
        factor = ir.arg("factor", ir.buffer((TILE_ROWS, 64), "uint8"))
        instruction("ldtilecfg", tirx.address_of(table[0]))
        for number in range(_TILE_SUMS):
            instruction("tilezero", number)
        for number in range(_TILE_SUMS, TILE_REGISTERS):
            instruction("tileloadd64", number, tirx.address_of(factor[0, 0]), tirx.IntImm("int64", 64))
        with ir.serial(_TILE_STEPS):
            for number in range(_TILE_SUMS):
                instruction(operation.name, number, _TILE_SUMS, _TILE_SUMS + 1)
        instruction("tilerelease")
    return builder.get()


def _triad(vectors: int, lanes: int) -> Any:
    """main(b, c, a): a = b + 0.5 * c."""
    import tvm
    from tvm import s_tir, te

    b, c = (te.placeholder((vectors, lanes), name=name, dtype="float32") for name in "bc")
    half = tvm.tirx.const(0.5, "float32")
    a = te.compute((vectors, lanes), lambda i, lane: b[i, lane] + half * c[i, lane], name="a")
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([b, c, a])}))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("a"))[-1])
    return schedule.mod["main"]


def _compile(func: Any, target: Target) -> Any:
    import tvm

    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.compile(mod, target=target.tvm).jit()


def _cores(target: Target) -> list[int]:
    """The cores to measure, one for each thread; threads beyond the cores would add nothing."""
    return sorted(os.sched_getaffinity(0))[: target.threads]


def _call_rate(
    kernel: Any, arguments: Callable[[], list[Any]], cores: Sequence[int], calls: int, seconds: float
) -> float:
    """Calls/s of a serial kernel on all cores together: the best round of those that fit into `seconds`.

    A thread on each core makes arguments of its own, near to it, and then `calls` calls a round. The median
    of them counts: one during which the thread was not interrupted, while the other cores were at work too.
    TVM's own thread pool would not do: on a busy machine its workers share cores, and a call waits for the
    last of them.
    """
    import tvm

    def prepare(core: int) -> list[Any]:
        stay_on({core})
        return arguments()

    def median_call(core: int, own: list[Any]) -> float:
        stay_on({core})
        evaluate = kernel.time_evaluator("main", tvm.cpu(), number=1, repeat=calls)
        return median(float(call) for call in evaluate(*own).results)

    best = 0.0
    with ThreadPoolExecutor(len(cores)) as threads:
        prepared = list(threads.map(prepare, cores))
        deadline = time.perf_counter() + seconds
        while best == 0 or time.perf_counter() < deadline:
            best = max(best, sum(1 / call for call in threads.map(median_call, cores, prepared)))
    return best
