"""`weights.bin`: tensors one after the other, aligned, mapped into memory instead of read."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.artifact.manifest import WeightSpec
from slipstream.errors import ArtifactError

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64


class WeightsFile:
    """Tensors are added one after the other; one whose bytes are in the file already is not written again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[bytes, int] = {}
        path.touch()

    def add(self, weights: Sequence[Array]) -> tuple[WeightSpec, ...]:
        """Add the tensors; the result says where each one is."""
        specs = []
        with self.path.open("ab") as file:
            for weight in weights:
                content = np.ascontiguousarray(weight).reshape(-1).view(np.uint8)
                digest = hashlib.blake2b(content.data, digest_size=16).digest()
                if digest not in self._offsets:
                    file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                    self._offsets[digest] = file.tell()
                    file.write(content.data)
                specs.append(WeightSpec(str(weight.dtype), tuple(weight.shape), self._offsets[digest]))
        return tuple(specs)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def cut_back(self, size: int) -> None:
        """Drop what was added since the file had this `size`."""
        self._offsets = {digest: offset for digest, offset in self._offsets.items() if offset < size}
        os.truncate(self.path, size)


def map_weights(path: Path, specs: Sequence[WeightSpec]) -> list[Array]:
    """The tensors as views of the file; processes that load the same artifact share the pages."""
    if not specs:
        return []
    if any(spec.dtype == "bfloat16" for spec in specs):
        import ml_dtypes  # noqa: F401  NumPy has the type from it

    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if len(mapped) < max(spec.offset + int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize for spec in specs):
        raise ArtifactError(f"{path} is damaged (too short): compile the model again")
    return [
        np.empty(spec.shape, spec.dtype)
        if 0 in spec.shape
        else np.frombuffer(mapped, spec.dtype, int(np.prod(spec.shape)), spec.offset).reshape(spec.shape)
        for spec in specs
    ]
