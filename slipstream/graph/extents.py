"""Whether shapes are known before the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import tirx


def are_known(extents: Iterable[Any]) -> bool:
    """Whether all extents of a shape are numbers."""
    return all(isinstance(extent, tirx.IntImm) for extent in extents)


def takes_known_shapes(func: tirx.PrimFunc) -> bool:
    """Whether a function takes tensors alone, of known shapes."""
    return all(isinstance(p.ty, tirx.buffer.BufferType) and are_known(p.ty.shape) for p in func.params)
