"""Calling a model's library from Python, with NumPy alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.errors import ArtifactError
from slipstream.frontends.inputs import Array, TensorSpec

# Libraries that depend on one of this name share the first that a process loads: one pool for all models.
POOL = "libslipstream_pool.so.1"
_ALIGNMENT = 64


class ModelLibrary:
    """One loaded model. `run` may be called from several threads: calls share the process's thread pool."""

    def __init__(self, library: Path, prefix: str, weights: Path, outputs: Sequence[TensorSpec], threads: int) -> None:
        self._code = ctypes.CDLL(str(library))
        self._outputs = [(spec.shape, np.dtype(spec.dtype)) for spec in outputs]
        self._error = self._function(f"{prefix}_error", ctypes.c_char_p)
        self._destroy = self._function(f"{prefix}_destroy", None, ctypes.c_void_p)
        create = self._function(f"{prefix}_create", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
        self._run = self._function(f"{prefix}_run", ctypes.c_int, *[ctypes.c_void_p] * 3)
        self._set_threads = self._function(f"{prefix}_set_threads", None, ctypes.c_void_p, ctypes.c_int)
        self._model = create(str(weights).encode(), threads)
        if not self._model:
            raise ArtifactError(f"{library} cannot be loaded ({self._last_error()}): compile the model again")

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._code, name)
        function.restype, function.argtypes = result, arguments
        return function

    def _last_error(self) -> str:
        return (self._error() or b"").decode(errors="replace")

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for dense inputs of the right types and shapes."""
        if self._model is None:
            raise ArtifactError("the model was closed: load it again")
        outputs = [aligned_empty(shape, dtype) for shape, dtype in self._outputs]
        if self._run(self._model, _addresses(inputs), _addresses(outputs)):
            raise ArtifactError(f"the model failed while running: {self._last_error()}")
        return outputs

    def set_threads(self, threads: int) -> None:
        self._set_threads(self._model, threads)

    def close(self) -> None:
        """Give back the model's memory, and with the last model of the process the pool's threads."""
        model, self._model = self._model, None
        if model:
            self._destroy(model)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self.close()


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that compiled code can write to directly."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def _addresses(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[array.__array_interface__["data"][0] for array in arrays])
