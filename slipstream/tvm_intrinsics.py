"""TVM's tensor intrinsics, imported in seconds instead of most of a minute."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache


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
    """Call this before anything that makes a `TuneContext`: its constructor does the same import, slowly."""
    with quick_inspect_stack():
        import tvm.s_tir.tensor_intrin  # noqa: F401
