"""TVM's tensor intrinsics, imported in seconds instead of most of a minute."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType

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
