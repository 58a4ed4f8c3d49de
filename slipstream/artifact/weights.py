"""`weights.bin`: tensors one after the other, aligned, mapped into memory instead of read."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.artifact.manifest import WeightSpec
from slipstream.errors import ArtifactError

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64


def write_weights(path: Path, weights: Sequence[Array]) -> tuple[WeightSpec, ...]:
    """Write the tensors; the result says where each one is."""
    specs = []
    with path.open("wb") as file:
        for weight in weights:
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            specs.append(WeightSpec(str(weight.dtype), tuple(weight.shape), file.tell()))
            file.write(np.ascontiguousarray(weight).reshape(-1).view(np.uint8).data)
    return tuple(specs)


def map_weights(path: Path, specs: Sequence[WeightSpec]) -> list[Array]:
    """The tensors as views of the file; processes that load the same artifact share the pages."""
    if not specs:
        return []
    if any(spec.dtype == "bfloat16" for spec in specs):
        import ml_dtypes  # noqa: F401  NumPy has the type from it

    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    last = specs[-1]
    if len(mapped) < last.offset + int(np.prod(last.shape)) * np.dtype(last.dtype).itemsize:
        raise ArtifactError(f"{path} is damaged (too short): compile the model again")
    return [
        np.empty(spec.shape, spec.dtype)
        if 0 in spec.shape
        else np.frombuffer(mapped, spec.dtype, int(np.prod(spec.shape)), spec.offset).reshape(spec.shape)
        for spec in specs
    ]
