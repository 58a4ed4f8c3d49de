"""TVM's tensor intrinsics, imported in seconds instead of most of a minute."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

# Of NVIDIA's tensor cores, what multiplies pieces of 16 x 16 halves and adds up in float32, by what each is for.
PIECE = 16
WMMA = {
    "init": "wmma_fill_16x16x16_f32",
    "load_a": "wmma_load_16x16x16_f16_a_shared_dyn",
    "load_b": "wmma_load_16x16x16_f16_b_shared_dyn",
    "compute": "wmma_sync_16x16x16_f16f16f32",
    "store": "wmma_store_16x16x16_f32_shared_dyn",
}
WMMA_LOAD_B_TRANSPOSED = "wmma_load_16x16x16_f16_b_trans_shared_dyn"
WMMA_COMPUTE_TRANSPOSED = "wmma_sync_16x16x16_f16f16f32_trans"

_CUDA = "tvm.s_tir.tensor_intrin.cuda"
_OTHER_DEVICES = ("cuda", "rocm", "hexagon", "riscv_cpu")


@contextlib.contextmanager
def quick_inspect_stack() -> Iterator[None]:
    """Let `inspect.stack` return frames without their source lines, which the intrinsics' parser never looks at."""

    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        del context
        frame, frames = sys._getframe(1), []
        while frame is not None:
            code = frame.f_code
            frames.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
            frame = frame.f_back  # type: ignore[assignment]
        return frames

    original = inspect.stack
    inspect.stack = stack
    try:
        yield
    finally:
        inspect.stack = original


@cache
def import_intrinsics() -> None:
    """Call this before anything that makes a `TuneContext`: its constructor does the same import, slowly.

    Only the CPUs' intrinsics are really imported; those of other devices, nine tenths of the work, stay unknown.
    """
    package = "tvm.s_tir.tensor_intrin"
    absent = [name for kind in _OTHER_DEVICES if (name := f"{package}.{kind}") not in sys.modules]
    sys.modules.update((name, ModuleType(name)) for name in absent)
    try:
        with quick_inspect_stack():
            importlib.import_module(package)
    finally:
        for name in absent:
            del sys.modules[name]


@cache
def import_tensor_core_intrinsics() -> None:
    """Register those above; the hundreds of others that TVM has for CUDA stay unknown."""
    if _CUDA in sys.modules:
        return
    from tvm.s_tir import TensorIntrin

    intrinsics = _import_without_registering()
    size = (PIECE, PIECE, PIECE)
    load, scope = intrinsics.get_wmma_load_intrin, "shared.dyn"
    with quick_inspect_stack():
        for name, parts in {
            WMMA["init"]: intrinsics.get_wmma_fill_intrin(*size, "float32"),
            WMMA["load_a"]: load(*size, "float16", scope, False, False),
            WMMA["load_b"]: load(*size, "float16", scope, True, False),
            WMMA_LOAD_B_TRANSPOSED: load(*size, "float16", scope, True, True),
            WMMA["compute"]: intrinsics.get_wmma_sync_intrin(*size, "float16", "float32", False),
            WMMA_COMPUTE_TRANSPOSED: intrinsics.get_wmma_sync_intrin(*size, "float16", "float32", True),
            WMMA["store"]: intrinsics.get_wmma_store_intrin(*size, "float32", scope),
        }.items():
            TensorIntrin.register(name, *parts)


def _import_without_registering() -> Any:
    """TVM's module for CUDA, of which only the functions are wanted."""
    from tvm.s_tir import TensorIntrin
    from tvm.script import tirx as script

    parse, register = script.prim_func, TensorIntrin.register
    script.prim_func = lambda *_, **__: lambda func: func
    TensorIntrin.register = staticmethod(lambda *_, **__: None)
    try:
        return importlib.import_module(_CUDA)
    finally:
        script.prim_func, TensorIntrin.register = parse, register
