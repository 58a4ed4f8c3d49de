"""What this machine's CPU and GPUs are called, without importing TVM or calling into CUDA."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_TOOL_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Gpu:
    """A GPU the driver reports; `memory` in bytes, None where the driver does not say."""

    name: str
    memory: int | None
    driver: str


def cpu_model() -> str:
    """The CPU's name as its vendor or the kernel gives it."""
    fields = _fields(_CPUINFO.read_text())
    for key in ("model name", "Model", "Hardware"):
        if fields.get(key):
            return fields[key]
    # Arm kernels give numbers only, and lscpu has their names.
    named = _fields(_output_of("lscpu")).get("Model name", "")
    if named.strip("- "):
        return named
    numbers = [f"{key} {fields[key]}" for key in ("CPU implementer", "CPU part") if key in fields]
    return ", ".join([platform.machine(), *numbers])


def gpus() -> list[Gpu]:
    """The NVIDIA GPUs the driver reports; none where its tool is missing, fails or hangs."""
    listing = _output_of("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    rows = [line.rsplit(", ", 2) for line in listing.splitlines()]
    return [_gpu(*row) for row in rows if len(row) == 3]


def _gpu(name: str, mebibytes: str, driver: str) -> Gpu:
    return Gpu(name.strip(), int(mebibytes) * 2**20 if mebibytes.isdigit() else None, driver.strip())


def _output_of(tool: str, *arguments: str) -> str:
    """What a tool prints; nothing where it is missing, fails or hangs."""
    path = shutil.which(tool)
    if path is None:
        return ""
    command = [path, *arguments]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _fields(listing: str) -> dict[str, str]:
    """`key : value` lines, the first of each key."""
    fields: dict[str, str] = {}
    for line in listing.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields
