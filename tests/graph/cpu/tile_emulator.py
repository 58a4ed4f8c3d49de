"""AMX on CPUs without it: generated code calls functions in the place of instructions."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from subprocess import run
from tempfile import mkdtemp
from typing import Any

from tvm import tirx

from slipstream.graph.cpu import tile_registers
from slipstream.machine.linker import find_linker


@cache
def _library() -> ctypes.CDLL:
    compiler = find_linker()
    assert compiler is not None
    library = Path(mkdtemp()) / "tiles.so"
    source = Path(__file__).with_suffix(".c")
    run([*compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Counts:
    """What emulated code has done so far."""

    def _count(self, name: str) -> int:
        return ctypes.c_int.in_dll(_library(), f"slipstream_emulated_{name}").value

    @property
    def faults(self) -> int:
        return self._count("faults")

    @property
    def products(self) -> int:
        return self._count("products")

    @property
    def loads(self) -> int:
        return self._count("loads")


@contextmanager
def emulated_tiles() -> Iterator[Counts]:
    """Code generated inside calls the emulator."""
    _library()
    original = tile_registers.instruction

    def call(name: str, *operands: Any) -> Any:
        return tirx.Evaluate(tirx.call_extern("int32", f"slipstream_emulated_{name}", *operands))

    tile_registers.instruction = call
    try:
        yield Counts()
    finally:
        tile_registers.instruction = original
