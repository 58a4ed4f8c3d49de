"""The one tool that is not a Python package: something that links an object file into a shared library."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence

from slipstream.errors import BuildError

_COMPILERS = ("cc", "gcc", "clang", "g++")


def find_linker() -> list[str] | None:
    """The command that links: a C compiler on the path, else Zig's from PyPI, else None."""
    for name in _COMPILERS:
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        # Nothing of the C library has to be linked in: the process that loads the model has it already.
        return [sys.executable, "-m", "ziglang", "cc", "-nostdlib"]
    return None


def no_linker() -> BuildError:
    return BuildError(
        "no linker found: install a C compiler (for example apt-get install gcc), or pip install 'slipstream[linker]'"
    )


def link(output: str, objects: Sequence[str], options: object = None, cc: object = None) -> None:
    """Link `objects` into the shared library `output` (called by TVM's `export_library`, hence its shape)."""
    linker = find_linker()
    if linker is None:
        raise no_linker()
    libraries = [] if "-nostdlib" in linker else ["-lm"]
    command = [*linker, "-shared", "-fPIC", "-o", output, *objects, *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BuildError(f"linking with {linker[0]} failed: {last}")


# TVM asks this attribute which file type to hand over.
link.output_format = "so"  # type: ignore[attr-defined]
