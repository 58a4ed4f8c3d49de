"""Importing TVM for a command that does not need PyTorch."""

from __future__ import annotations

import sys


def import_tvm_without_torch() -> None:
    """Import TVM while PyTorch looks absent: tvm_ffi would import it too, which triples the time.

    PyTorch can still be imported afterwards; tensors then reach TVM through DLPack, as we pass them anyway.
    """
    if "tvm_ffi" in sys.modules or "torch" in sys.modules:
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # this is how Python marks a module as not importable
    try:
        import tvm  # noqa: F401
    finally:
        del sys.modules["torch"]
