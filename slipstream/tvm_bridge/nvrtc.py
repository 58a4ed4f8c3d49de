"""CUDA C++ to machine code in this process, with as few headers as the code needs.

TVM's own way includes the C++ library's headers into every kernel, whose parsing takes a second where compiling a
small kernel takes a twentieth. Kernels use nothing of them but the fixed-width integers, which are declared here.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slipstream.errors import BuildError
from slipstream.machine.cuda_libraries import include_folders, load_nvrtc
from slipstream.machine.target import available_cores
from slipstream.processes.child import child_environment

# What TVM puts before every kernel, for NVRTC and for nvcc.
_PREAMBLE = re.compile(r"#ifdef __CUDACC_RTC__.*?\n#else\n.*?#endif\n", re.DOTALL)
_INTEGERS = """
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define __asm__ asm
#define __volatile__ volatile
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
"""


def is_available() -> bool:
    return load_nvrtc() is not None


def compile_cuda(code: str, architecture: str) -> bytes:
    """Machine code (cubin) for an architecture such as `sm_90`."""
    nvrtc = load_nvrtc()
    if nvrtc is None:
        raise BuildError(
            "NVRTC, which compiles CUDA code, is not found: pip install 'slipstream[cuda]', "
            "or set CUDA_HOME to a CUDA toolkit of version 12 or 13"
        )
    source = trim(code)
    options = [f"--gpu-architecture={architecture}", "--device-int128", "-default-device"]
    if "#include" in source:
        options += [f"-I{folder}" for folder in include_folders()]
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
        if status:
            raise BuildError(f"NVRTC refused a kernel: {_first_error(_text(nvrtc, program, 'ProgramLog'))}")
        return _text(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def trim(code: str) -> str:
    """The code without the headers it does not use; as it is if it uses what they declare."""
    rest, found = _PREAMBLE.subn("", code, count=1)
    if not found or "std::" in rest:
        return code
    return _INTEGERS + rest


def version() -> str | None:
    """NVRTC's version, or None if there is none."""
    nvrtc = load_nvrtc()
    if nvrtc is None:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_many(codes: Sequence[str], architecture: str) -> list[bytes]:
    """As `compile_cuda`, on all cores: each in a process of its own, since NVRTC's threads wait for each other."""
    if len(codes) < 2:
        return [compile_cuda(code, architecture) for code in codes]
    with ThreadPoolExecutor(available_cores()) as threads:
        return list(threads.map(lambda code: _compile_in_child(code, architecture), codes))


def _compile_in_child(code: str, architecture: str) -> bytes:
    command = [sys.executable, "-m", "slipstream.tvm_bridge.nvrtc", architecture]
    done = subprocess.run(command, input=code.encode(), capture_output=True, env=child_environment())
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise BuildError(said[-1].removeprefix("slipstream.errors.BuildError: "))
    return done.stdout


def use_for_tvm(compiled: Mapping[str, bytes] | None = None) -> None:
    """Let TVM compile CUDA code this way from now on, or take it from what is `compiled` already.

    The architecture is that of the target in scope.
    """
    import tvm_ffi
    from tvm.target import Target

    def compile_for_current_target(code: str) -> bytes:
        known = (compiled or {}).get(str(code))
        return known or compile_cuda(str(code), str(Target.current().attrs["arch"]))

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compile_for_current_target, override=True)


def _text(nvrtc: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _first_error(log: bytes) -> str:
    lines = log.decode(errors="replace").strip("\0\n ").splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "it said nothing")


def _check(nvrtc: Any, status: int) -> None:
    if status:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise BuildError(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(status).decode()}")


if __name__ == "__main__":
    sys.stdout.buffer.write(compile_cuda(sys.stdin.read(), sys.argv[1]))
