"""Compiling the kernels of a whole model on all cores.

TVM passes all of them to the compiler as one text, which is compiled on one core: half a minute for a tuned ResNet-18.
Here each is a module of its own. TVM generates their texts, all are compiled in parallel, and TVM then reads each
result from a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
import tvm_ffi

from slipstream.tvm_bridge import nvrtc

_BUILD = "target.build.cuda"
_CALLBACK = "tvm_callback_cuda_compile"


@contextmanager
def compile_kernels_separately() -> Iterator[None]:
    """Context in which TVM builds the kernels of a module separately and on all cores."""
    build = tvm_ffi.get_global_func(_BUILD)

    def build_separately(mod: tvm.IRModule, target: Any) -> Any:
        parts = [tvm.IRModule({variable: func}, attrs=mod.attrs) for variable, func in mod.functions.items()]
        if len(parts) < 2 or not all(_is_kernel(func) for func in mod.functions.values()):
            return build(mod, target)
        texts = _texts(build, parts, target)
        compiled = dict(zip(texts, nvrtc.compile_many(texts, str(target.attrs["arch"])), strict=True))
        nvrtc.use_for_tvm(compiled)
        try:
            first, *others = [build(part, target) for part in parts]
        finally:
            nvrtc.use_for_tvm()
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
    seen: list[str] = []

    def note(code: str) -> bytes:
        seen.append(str(code))
        return b"not compiled"

    tvm_ffi.register_global_func(_CALLBACK, note, override=True)
    for part in parts:
        build(part, target)
    return seen


def _is_kernel(func: Any) -> bool:
    """A function on the device that others call has to stay with them."""
    return bool(func.attrs and "calling_conv" in func.attrs and int(func.attrs["calling_conv"]) == _KERNEL_LAUNCH)


_KERNEL_LAUNCH = 2
