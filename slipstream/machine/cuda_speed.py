"""How fast this machine's GPU is: FLOP/s in float32 and at tensor cores, and memory bandwidth, by small programs.

Straight on the driver and NVRTC, so that it also works where TVM does not. Run it in a child process
(`measure_in_child`): whoever has called into CUDA must not fork.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.processes.child import child_environment

_TIMEOUT_S = 60.0
_SUMS, _STEPS, _THREADS, _BLOCKS_PER_PROCESSOR = 16, 4096, 256, 8
_FLOP_PER_MULTIPLY_ADD = 2
_COPIED_BYTES = 1 << 30
_REPEATS = 10
_KERNEL = f"""
extern "C" __global__ void multiply_adds(float* out, float factor) {{
  float sums[{_SUMS}];
  #pragma unroll
  for (int i = 0; i < {_SUMS}; ++i) sums[i] = threadIdx.x + i;
  for (int step = 0; step < {_STEPS}; ++step) {{
    #pragma unroll
    for (int i = 0; i < {_SUMS}; ++i) sums[i] = sums[i] * factor + factor;
  }}
  float total = 0;
  #pragma unroll
  for (int i = 0; i < {_SUMS}; ++i) total += sums[i];
  if (total == 12345.678f) out[0] = total;
}}
"""
# Products of 16 x 16 and 16 x 8 halves, several at a time, as `mma.sync` of architectures from sm_80 on does them.
_FIRST_TENSOR_ARCHITECTURE = 80
_TENSOR_SUMS, _TENSOR_STEPS = 8, 2048
_FLOP_PER_PRODUCT = 2 * 16 * 8 * 16
_WARP = 32
_TENSOR_KERNEL = f"""
extern "C" __global__ void tensor_products(float* out, float factor) {{
  float sums[{_TENSOR_SUMS}][4] = {{}};
  unsigned a = 0x3c003c00u + threadIdx.x, b = a;
  for (int step = 0; step < {_TENSOR_STEPS}; ++step) {{
    #pragma unroll
    for (int i = 0; i < {_TENSOR_SUMS}; ++i)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%0,%1,%2,%3}}, {{%4,%4,%4,%4}}, {{%5,%5}}, "
                   "{{%0,%1,%2,%3}};"
                   : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3]) : "r"(a), "r"(b));
  }}
  float total = 0;
  #pragma unroll
  for (int i = 0; i < {_TENSOR_SUMS}; ++i) total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
  if (total == factor) out[0] = total;
}}
"""


@dataclass(frozen=True)
class GpuSpeed:
    """FLOP/s in float32, without tensor cores, and bytes/s read plus written by a copy within the device's memory.

    `tensor_flops` are products of float16 added up in float32, by the instruction that generated programs use; those
    of float32 where the device has none.
    """

    flops: float
    bandwidth: float
    tensor_flops: float


class GpuSpeedError(SlipstreamError):
    """The GPU's speed could not be measured."""


def measure_in_child() -> GpuSpeed:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "slipstream.machine.cuda_speed"]
    try:
        done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=_TIMEOUT_S)
        return GpuSpeed(**json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, ValueError, TypeError, IndexError) as error:
        raise GpuSpeedError(f"the GPU's speed could not be measured ({error}): run 'slipstream doctor'") from error


def measure() -> GpuSpeed:
    """Measure in this process, which must not fork afterwards."""
    from slipstream.machine import nvrtc
    from slipstream.machine.cuda import this_device

    device = this_device()
    driver = _Driver()
    source, destination = driver.allocate(_COPIED_BYTES), driver.allocate(_COPIED_BYTES)
    blocks = _BLOCKS_PER_PROCESSOR * device.multiprocessors
    out, factor = ctypes.c_uint64(source), ctypes.c_float(1e-9)
    arguments = (ctypes.c_void_p * 2)(*[ctypes.cast(ctypes.byref(a), ctypes.c_void_p) for a in (out, factor)])

    def seconds(code: str, name: bytes) -> float:
        kernel = driver.kernel(nvrtc.compile_cuda(code, device.architecture), name)
        launch = driver.library.cuLaunchKernel
        return driver.seconds(lambda: int(launch(kernel, blocks, 1, 1, _THREADS, 1, 1, 0, None, arguments, None)))

    def copy() -> int:
        size = ctypes.c_size_t(_COPIED_BYTES)
        return int(
            driver.library.cuMemcpyDtoDAsync_v2(ctypes.c_uint64(destination), ctypes.c_uint64(source), size, None)
        )

    flop = blocks * _THREADS * _SUMS * _STEPS * _FLOP_PER_MULTIPLY_ADD
    flops = tensor_flops = flop / seconds(_KERNEL, b"multiply_adds")
    if int(device.architecture.removeprefix("sm_")) >= _FIRST_TENSOR_ARCHITECTURE:
        products = blocks * (_THREADS // _WARP) * _TENSOR_SUMS * _TENSOR_STEPS
        tensor_flops = products * _FLOP_PER_PRODUCT / seconds(_TENSOR_KERNEL, b"tensor_products")
    return GpuSpeed(flops, 2 * _COPIED_BYTES / driver.seconds(copy), tensor_flops)


class _Driver:
    """The calls of CUDA's driver that are needed here, each checked."""

    def __init__(self) -> None:
        self.library: Any = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self.library.cuInit(0))
        self._check(self.library.cuDeviceGet(ctypes.byref(device), 0))
        self._check(self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check(self.library.cuCtxSetCurrent(context))

    def kernel(self, code: bytes, name: bytes) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self.library.cuModuleLoadData(ctypes.byref(module), code))
        self._check(self.library.cuModuleGetFunction(ctypes.byref(function), module, name))
        return function

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self._check(self.library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
        return pointer.value

    def seconds(self, work: Callable[[], int]) -> float:
        """The shortest of some runs, by the device's clock; the first of all is not counted."""
        begin, end, best = ctypes.c_void_p(), ctypes.c_void_p(), float("inf")
        for event in (begin, end):
            self._check(self.library.cuEventCreate(ctypes.byref(event), 0))
        for repeat in range(_REPEATS + 1):
            self._check(self.library.cuEventRecord(begin, None))
            self._check(work())
            self._check(self.library.cuEventRecord(end, None))
            self._check(self.library.cuEventSynchronize(end))
            elapsed = ctypes.c_float()
            self._check(self.library.cuEventElapsedTime(ctypes.byref(elapsed), begin, end))
            best = min(best, elapsed.value / 1e3) if repeat else best
        return best

    def _check(self, status: int) -> None:
        if status:
            raise GpuSpeedError(f"the CUDA driver answers with error {status}: 'nvidia-smi' says more")


if __name__ == "__main__":
    print(json.dumps(asdict(measure())))
