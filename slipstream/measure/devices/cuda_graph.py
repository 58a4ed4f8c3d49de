"""Seconds of a kernel within a CUDA graph, as a compiled model launches it.

Launched one by one from a program, kernels of less than some microseconds all take as long as a launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.machine.cuda_libraries import load_library

_THREAD_LOCAL = 1
_MOST_NODES = 64


class CaptureError(SlipstreamError):
    """What runs cannot be captured: it allocates memory or waits for the device."""


class GraphTimer:
    """Times what `run` launches on a stream of its own."""

    def __init__(self, device: Any) -> None:
        runtime = load_library("cudart")
        if runtime is None:
            raise CaptureError("the CUDA runtime is not found: pip install 'slipstream[cuda]'")
        self._runtime = runtime
        self._device = device
        self._stream = ctypes.c_void_p()
        self._begin, self._end = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cudaStreamCreateWithFlags", ctypes.byref(self._stream), 1)
        self._call("cudaEventCreate", ctypes.byref(self._begin))
        self._call("cudaEventCreate", ctypes.byref(self._end))

    def seconds(self, run: Callable[[], object], number: int, repeat: int) -> list[float]:
        """`repeat` times the seconds of one of `number` runs, after some that are not counted."""
        nodes = min(number, _MOST_NODES)
        launches = -(-number // nodes)
        graph = self._capture(run, nodes)
        try:
            self._call("cudaGraphLaunch", graph, self._stream)
            return [self._replay(graph, launches) / (launches * nodes) for _ in range(repeat)]
        finally:
            self._call("cudaStreamSynchronize", self._stream)
            self._call("cudaGraphExecDestroy", graph)

    def _capture(self, run: Callable[[], object], count: int) -> ctypes.c_void_p:
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._device.sync()
        self._device.set_raw_stream(self._stream.value)
        try:
            self._call("cudaStreamBeginCapture", self._stream, _THREAD_LOCAL)
            try:
                for _ in range(count):
                    run()
            except Exception as error:
                self._runtime.cudaStreamEndCapture(self._stream, ctypes.byref(graph))
                raise CaptureError(str(error).strip().splitlines()[-1]) from error
            self._call("cudaStreamEndCapture", self._stream, ctypes.byref(graph))
        finally:
            self._device.set_raw_stream(0)
            self._runtime.cudaGetLastError()
        self._call("cudaGraphInstantiate", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        self._call("cudaGraphDestroy", graph)
        return executable

    def _replay(self, graph: ctypes.c_void_p, launches: int) -> float:
        self._call("cudaEventRecord", self._begin, self._stream)
        for _ in range(launches):
            self._call("cudaGraphLaunch", graph, self._stream)
        self._call("cudaEventRecord", self._end, self._stream)
        self._call("cudaEventSynchronize", self._end)
        milliseconds = ctypes.c_float()
        self._call("cudaEventElapsedTime", ctypes.byref(milliseconds), self._begin, self._end)
        return milliseconds.value / 1e3

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._runtime, name)(*arguments):
            raise CaptureError(f"{name} failed with status {status}")
