"""What an NVIDIA GPU allows a program: read from the driver, or looked up by the name of its architecture.

The driver is asked by a child process. A process that has called into CUDA must not fork, and those of ours that
tune fork all the time.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from slipstream.errors import TargetError

_ASK_SECONDS = 60.0
_KIB = 1024

# Numbers of cuDeviceGetAttribute.
_MAX_THREADS, _WARP, _REGISTERS, _MULTIPROCESSORS = 1, 10, 12, 16
_MAJOR, _MINOR, _SHARED = 75, 76, 97
_NAME_BYTES = 256

# Shared memory a block may ask for, by architecture, from CUDA's programming guide.
_SHARED_BY_ARCHITECTURE = {
    "sm_70": 96 * _KIB,
    "sm_75": 64 * _KIB,
    "sm_80": 163 * _KIB,
    "sm_86": 99 * _KIB,
    "sm_87": 163 * _KIB,
    "sm_89": 99 * _KIB,
    "sm_90": 227 * _KIB,
    "sm_100": 227 * _KIB,
    "sm_120": 99 * _KIB,
}


@dataclass(frozen=True)
class CudaDevice:
    """A GPU as a compiler sees it. `shared_bytes` and `registers` are what one block may have."""

    name: str
    architecture: str
    shared_bytes: int
    registers: int = 65536
    threads: int = 1024
    warp: int = 32
    multiprocessors: int = 0

    @property
    def capability(self) -> int:
        """The number in the architecture's name: 90 for sm_90."""
        return int("".join(filter(str.isdigit, self.architecture)) or 0)


def named_device(architecture: str) -> CudaDevice:
    """A GPU nobody has to have, for generating code: `sm_90` and its like."""
    if architecture not in _SHARED_BY_ARCHITECTURE:
        known = ", ".join(_SHARED_BY_ARCHITECTURE)
        raise TargetError(f"unknown GPU architecture {architecture!r}: 'cuda' is this machine's GPU; by name, {known}")
    return CudaDevice(architecture, architecture, _SHARED_BY_ARCHITECTURE[architecture])


def find_device() -> CudaDevice | None:
    """The first GPU the driver shows; None where there is no driver, no GPU or the driver does not answer."""
    return next(iter(find_devices()), None)


@cache
def find_devices() -> tuple[CudaDevice, ...]:
    """The GPUs the driver shows, those that `CUDA_VISIBLE_DEVICES` hides left out."""
    if not _driver_is_there():
        return ()
    root = str(Path(__file__).parents[2])
    ask = f"import sys; sys.path.insert(0, {root!r}); from slipstream.machine.cuda import tell; tell()"
    command = [sys.executable, "-S", "-c", ask]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS)
        return tuple(CudaDevice(**row) for row in json.loads(done.stdout)) if done.returncode == 0 else ()
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError):
        return ()


def equal_gpus(devices: Sequence[CudaDevice]) -> tuple[str, ...]:
    """The first of `devices` and those equal to it, by the names that `CUDA_VISIBLE_DEVICES` has for them.

    Times of one operator's programs are compared with each other, so a GPU of another model has no part.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(len(devices))) if named is None else map(str.strip, named.split(","))
    return tuple(name for name, device in zip(names, devices, strict=False) if device == devices[0])


def this_device() -> CudaDevice:
    device = find_device()
    if device is None:
        raise TargetError(
            "no NVIDIA GPU answers here: 'slipstream doctor' says what is seen; "
            "--target cuda:sm_90 names an architecture to generate code for without one"
        )
    return device


def parse_device(text: str) -> CudaDevice:
    """A GPU by architecture (`sm_90`), or this machine's if nothing is named."""
    return named_device(text) if text else this_device()


def from_target_json(config: dict[str, object]) -> CudaDevice:
    """The GPU that a TVM target of kind cuda describes; what it does not say is the architecture's."""
    device = named_device(str(config.get("arch", "")))
    fields = {
        "shared_bytes": "max_shared_memory_per_block",
        "registers": "registers_per_block",
        "threads": "max_threads_per_block",
        "warp": "thread_warp_size",
    }
    given = {ours: config[theirs] for ours, theirs in fields.items() if theirs in config}
    if not all(isinstance(value, int) and value > 0 for value in given.values()):
        raise TargetError(f"the limits of a CUDA target are whole numbers above zero, not {given}")
    return replace(device, **given)  # type: ignore[arg-type]


def _driver_is_there() -> bool:
    """Without opening the library: that would start threads in this process."""
    places = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
    return Path("/dev/nvidiactl").exists() or any((Path(place) / "libcuda.so.1").exists() for place in places)


def tell() -> None:
    """The child's side of `find_devices`: print them as JSON."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        sys.exit(1)
    print(json.dumps([asdict(_ask(driver, number)) for number in range(count.value)]))


def _ask(driver: ctypes.CDLL, number: int) -> CudaDevice:
    device = ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), number):
        sys.exit(1)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device):
            sys.exit(1)
        return value.value

    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGetName(name, _NAME_BYTES, device)
    return CudaDevice(
        name=name.value.decode(errors="replace"),
        architecture=f"sm_{attribute(_MAJOR)}{attribute(_MINOR)}",
        shared_bytes=attribute(_SHARED),
        registers=attribute(_REGISTERS),
        threads=attribute(_MAX_THREADS),
        warp=attribute(_WARP),
        multiprocessors=attribute(_MULTIPROCESSORS),
    )
