"""Runs on arguments as a model hands them to an operator.

Timed again and again on the same arguments, a program finds all of them in its cores' caches. In a model the inputs
have just been written by the operator before, by all threads, and everything else has left the cores' own caches. So
before every run that is timed each core reads more than its cache holds, and then the inputs are written again. Inputs
and outputs lie in memory like that of a model's calls: on large pages, where the kernel has some.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

from slipstream.machine.target import Target
from slipstream.measure.arena import Array, aligned
from slipstream.measure.lowering import as_tensor, generate, lower

_LINE_BYTES, _LINE_INTEGERS = 64, 16
_LARGE_PAGE_BYTES = 2 << 20
_WANT_LARGE_PAGES = mmap.MADV_HUGEPAGE
_USUAL_CACHE_BYTES = 1 << 20
_MOST_CACHE_BYTES = 4 << 20  # more is a cache that several cores share, and reading it would take milliseconds
# More than the cache holds, because caches do not replace exactly the line that was not used for longest.
_READ_FOR_EACH_BYTE = 2
# Each costs what reading takes, about as long as running a small program ten times.
_MOST_RUNS_A_SAMPLE = 12
_EMPTY_CALLS = 20


def cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Of the second cache, a core's own on most CPUs, if the machine says; else what is usual."""
    try:
        told = int((folder / "index2" / "size").read_text().strip().removesuffix("K")) << 10
        return min(told, _MOST_CACHE_BYTES)
    except (OSError, ValueError):
        return _USUAL_CACHE_BYTES


class Preparing:
    """What prepares a run. Made once, in the process that workers are forked from; all of them read the same data."""

    def __init__(self, target: Target) -> None:
        self.read_all, self.copy, self.do_nothing = (
            _compiled(mod, target) for mod in (_reading(), _copying(), _nothing())
        )
        lines = _READ_FOR_EACH_BYTE * cache_bytes() // _LINE_BYTES
        data = aligned((lines, _LINE_INTEGERS), np.dtype(np.int32))
        data[...] = 1  # memory that was never written to would be one page, read again and again
        self.other_data = as_tensor(data)


class CallMemory:
    """Inputs and outputs in one piece of memory, as in a call of a model, and what the inputs are before each run."""

    def __init__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        given = [*inputs, *outputs]
        offsets = np.cumsum([0, *(-(-array.nbytes // _LINE_BYTES) * _LINE_BYTES for array in given)])
        pages = -(-int(offsets[-1]) // _LARGE_PAGE_BYTES) + 1
        memory = mmap.mmap(-1, pages * _LARGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without large pages refuses
            memory.madvise(_WANT_LARGE_PAGES)
        everything = np.frombuffer(memory, np.uint8)
        offsets += -everything.ctypes.data % _LARGE_PAGE_BYTES
        arrays = [
            everything[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
            for array, offset in zip(given, map(int, offsets[:-1]), strict=True)
        ]
        self.inputs, self.outputs = arrays[: len(inputs)], arrays[len(inputs) :]
        for array, values in zip(arrays, given, strict=True):
            array[...] = values
        lines = everything[int(offsets[0]) : int(offsets[len(inputs)])].reshape(-1, _LINE_BYTES)
        saved = aligned(lines.shape, lines.dtype)
        saved[...] = lines
        self.input_lines, self.saved_lines = as_tensor(lines), as_tensor(saved)


class PreparedRuns:
    """Times single runs, each after the caches were put in the state that a model leaves them in."""

    def __init__(self, preparing: Preparing, memory: CallMemory, threads: int, run: Callable[[], object]) -> None:
        self._preparing, self._memory, self._run = preparing, memory, run
        self._sums = as_tensor(aligned((threads, _LINE_INTEGERS), np.dtype(np.int32)))
        self._call_seconds = min(seconds_of(lambda: preparing.do_nothing(self._sums)) for _ in range(_EMPTY_CALLS))

    def sample(self, number: int) -> float:
        """The mean seconds of so many runs, or of as many as are enough; without what calling from Python takes."""
        preparing, memory = self._preparing, self._memory
        runs, seconds = min(number, _MOST_RUNS_A_SAMPLE), 0.0
        for _ in range(runs):
            preparing.read_all(preparing.other_data, self._sums)
            preparing.copy(memory.saved_lines, memory.input_lines)
            seconds += seconds_of(self._run)
        return max(seconds / runs - self._call_seconds, self._call_seconds)


def seconds_of(run: Callable[[], object]) -> float:
    """By the clock, with what a call from Python takes: a microsecond."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _compiled(mod: tvm.IRModule, target: Target) -> Any:
    return generate(lower(mod, target, prepack=False), target)["main"]


def _reading() -> tvm.IRModule:
    """Every thread reads all lines, and adds them up so that nobody leaves it out."""
    lines, threads = te.var("lines"), te.var("threads")
    data = te.placeholder((lines, _LINE_INTEGERS), "int32", name="data")
    line = te.reduce_axis((0, lines), "line")
    sums = te.compute((threads, _LINE_INTEGERS), lambda t, i: te.sum(data[line, i], axis=line), name="sums")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, sums])}))
    block = sch.get_sblock("sums")
    thread, integer, each = sch.get_loops(block)
    sch.reorder(thread, each, integer)
    sch.parallel(thread)
    sch.vectorize(integer)
    sch.decompose_reduction(block, each)
    return sch.mod


def _copying() -> tvm.IRModule:
    """Lines are split among the threads."""
    saved = te.placeholder((te.var("lines"), _LINE_BYTES), "uint8", name="saved")
    copied = te.compute(saved.shape, lambda line, byte: saved[line, byte], name="copied")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([saved, copied])}))
    line, byte = sch.get_loops(sch.get_sblock("copied"))
    sch.parallel(line)
    sch.vectorize(byte)
    return sch.mod


def _nothing() -> tvm.IRModule:
    """Sets one number."""
    first = te.compute((1, 1), lambda i, j: te.const(0, "int32"), name="first")
    return tvm.IRModule({"main": te.create_prim_func([first])})
