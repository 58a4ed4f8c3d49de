"""CUDA C++ to machine code by NVIDIA's run-time compiler, with no GPU and without TVM."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slipstream.errors import BuildError
from slipstream.machine.cuda_libraries import include_folder, load_library
from slipstream.machine.target import available_cores
from slipstream.processes.child import child_environment


def is_available() -> bool:
    return load_library("nvrtc") is not None


def version() -> str | None:
    """NVRTC's version, or None if there is none."""
    nvrtc = load_library("nvrtc")
    if nvrtc is None:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_cuda(code: str, architecture: str) -> bytes:
    """Machine code (cubin) for an architecture such as `sm_90`."""
    nvrtc = load_library("nvrtc")
    if nvrtc is None:
        raise BuildError(
            "NVRTC, which compiles CUDA code, is not found: pip install 'slipstream[cuda]', "
            "or set CUDA_HOME to a CUDA toolkit of version 12 or 13"
        )
    options = [f"--gpu-architecture={architecture}", "--device-int128", "-default-device"]
    folder = include_folder() if "#include" in code else None
    if folder is not None:
        options.append(f"-I{folder}")
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernel.cu", 0, None, None))
    try:
        encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        if nvrtc.nvrtcCompileProgram(program, len(options), encoded):
            raise BuildError(f"NVRTC refused a kernel: {_first_error(_output(nvrtc, program, 'ProgramLog'))}")
        return _output(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def compile_many(codes: Sequence[str], architecture: str) -> list[bytes]:
    """As `compile_cuda`, on all cores: each in a process of its own, since NVRTC's threads wait for each other."""
    if len(codes) < 2:
        return [compile_cuda(code, architecture) for code in codes]
    with ThreadPoolExecutor(available_cores()) as threads:
        return list(threads.map(lambda code: _compile_in_child(code, architecture), codes))


def _compile_in_child(code: str, architecture: str) -> bytes:
    command = [sys.executable, "-m", "slipstream.machine.nvrtc", architecture]
    done = subprocess.run(command, input=code.encode(), capture_output=True, env=child_environment())
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise BuildError(lines[-1].removeprefix("slipstream.errors.BuildError: "))
    return done.stdout


def _output(nvrtc: Any, program: ctypes.c_void_p, what: str) -> bytes:
    """What NVRTC keeps of a program under the name `what`."""
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _first_error(log: bytes) -> str:
    lines = log.decode(errors="replace").strip("\0\n ").splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")


def _check(nvrtc: Any, status: int) -> None:
    if status:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise BuildError(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(status).decode()}")


if __name__ == "__main__":
    sys.stdout.buffer.write(compile_cuda(sys.stdin.read(), sys.argv[1]))
