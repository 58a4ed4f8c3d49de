"""TVM compiles CUDA code by our call of NVRTC, with as few headers as the code needs and on all cores.

TVM's own call includes the C++ library's headers into every kernel, whose parsing takes a second where compiling a
small kernel takes a twentieth. Kernels use nothing of them but the fixed-width integers, which are declared here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tvm
import tvm_ffi
from tvm.target import Target

from slipstream.machine import nvrtc

_COMPILE = "tvm_callback_cuda_compile"
_BUILD = "target.build.cuda"
_KERNEL_LAUNCH = 2
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


def without_unused_headers(code: str) -> str:
    """TVM's CUDA code without the headers it does not use; as it is if it uses what they declare."""
    rest, found = _PREAMBLE.subn("", code, count=1)
    if not found or "std::" in rest:
        return code
    return _INTEGERS + rest


def use_nvrtc(compiled: Mapping[str, bytes] | None = None) -> None:
    """Replace TVM's compiling of CUDA code, which takes a second longer for each kernel, until the process ends.

    Code that is a key of `compiled` is not compiled again. The architecture is that of the target in scope.
    """

    def compile_for_current_target(code: str) -> bytes:
        done = (compiled or {}).get(str(code))
        return done or nvrtc.compile_cuda(without_unused_headers(str(code)), str(Target.current().attrs["arch"]))

    tvm_ffi.register_global_func(_COMPILE, compile_for_current_target, override=True)


@contextmanager
def compile_kernels_separately() -> Iterator[None]:
    """Replace TVM's building of a CUDA module, which passes all kernels to the compiler as one text.

    That is compiled on one core: half a minute for a tuned ResNet-18. In this context each kernel is a module of its
    own. TVM generates their texts, all are compiled in parallel, and TVM then reads each result from a cache.
    """
    build = tvm_ffi.get_global_func(_BUILD)

    def build_separately(mod: tvm.IRModule, target: Any) -> Any:
        parts = [tvm.IRModule({variable: func}, attrs=mod.attrs) for variable, func in mod.functions.items()]
        if len(parts) < 2 or not all(_is_kernel(func) for func in mod.functions.values()):
            return build(mod, target)
        texts = _texts(build, parts, target)
        codes = nvrtc.compile_many([without_unused_headers(text) for text in texts], str(target.attrs["arch"]))
        use_nvrtc(dict(zip(texts, codes, strict=True)))
        try:
            first, *others = [build(part, target) for part in parts]
        finally:
            use_nvrtc()
        for other in others:
            first.import_module(other)
        return first

    tvm_ffi.register_global_func(_BUILD, build_separately, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_BUILD, build, override=True)


def _texts(build: Any, parts: list[tvm.IRModule], target: Any) -> list[str]:
    """The CUDA C++ of each part."""
    texts: list[str] = []

    def note(code: str) -> bytes:
        texts.append(str(code))
        return b"not compiled"

    tvm_ffi.register_global_func(_COMPILE, note, override=True)
    for part in parts:
        build(part, target)
    return texts


def _is_kernel(func: Any) -> bool:
    """A function on the device that others call has to stay with them."""
    return bool(func.attrs and "calling_conv" in func.attrs and int(func.attrs["calling_conv"]) == _KERNEL_LAUNCH)
