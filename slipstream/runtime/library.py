"""Calling a model's library from Python, with NumPy alone."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.errors import ArtifactError
from slipstream.frontends.inputs import Array, TensorSpec

# Libraries that depend on one of this name share the first that a process loads: one pool for all models. Its number
# changes with its functions; models that were compiled before have the pool of their version beside them.
POOL_NAME = "libslipstream_pool.so."
POOL = f"{POOL_NAME}2"
_ALIGNMENT = 64


class ModelLibrary:
    """One loaded model. `run` may be called from several threads: calls share the process's thread pool."""

    def __init__(self, library: Path, prefix: str, weights: Path, outputs: Sequence[TensorSpec], threads: int) -> None:
        self._code = ctypes.CDLL(os.path.abspath(library))  # a bare name is one of the system's libraries
        self._outputs = [(spec.shape, np.dtype(spec.dtype)) for spec in outputs]
        self._error = self._function(f"{prefix}_error", ctypes.c_char_p)
        self._destroy = self._function(f"{prefix}_destroy", None, ctypes.c_void_p)
        create = self._function(f"{prefix}_create", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
        self._run = self._function(f"{prefix}_run", ctypes.c_int, *[ctypes.c_void_p] * 3)
        self._profile = self._function(f"{prefix}_profile", ctypes.c_int, *[ctypes.c_void_p] * 5)
        self._step = self._function(f"{prefix}_step", ctypes.c_char_p, ctypes.c_int)
        self._step_count = self._function(f"{prefix}_steps", ctypes.c_int)
        # Lists, whose `append` and `pop` are atomic: a lock could be held by another thread when the process forks.
        self._model: list[int] = []  # none once it is destroyed
        self._calls: list[int] = []  # the processes of those that run now: a forked child has its parent's too
        self._closed = False
        if model := create(os.fsencode(weights), threads):
            self._model.append(model)
        else:
            raise ArtifactError(f"{library} cannot be loaded ({self._last_error()}): compile the model again")

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._code, name)
        function.restype, function.argtypes = result, arguments
        return function

    def _last_error(self) -> str:
        return (self._error() or b"").decode(errors="replace")

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for dense inputs of the right types and shapes."""
        return self._call(self._run, inputs)

    @property
    def steps(self) -> list[str]:
        """The operators in the order of their calls."""
        return [self._step(index).decode() for index in range(self._step_count())]

    def profile(self, inputs: Sequence[Array], step_threads: Sequence[int] | None = None) -> Array:
        """Run the model; the nanoseconds each step took, on at most so many threads each (default: as planned)."""
        nanoseconds = np.zeros(self._step_count(), np.int64)
        limits = None if step_threads is None else np.array(step_threads, np.int32)
        if limits is not None and limits.shape != nanoseconds.shape:
            raise ValueError(f"{len(limits)} limits for {len(nanoseconds)} steps")
        self._call(self._profile, inputs, limits.ctypes.data if limits is not None else None, nanoseconds.ctypes.data)
        return nanoseconds

    def _call(self, function: Any, inputs: Sequence[Array], *more: Any) -> list[Array]:
        self._calls.append(os.getpid())
        try:
            if self._closed:
                raise ArtifactError("the model was closed: load it again")
            outputs = [aligned_empty(shape, dtype) for shape, dtype in self._outputs]
            if function(self._model[0], _addresses(inputs), _addresses(outputs), *more):
                raise ArtifactError(f"the model failed while running: {self._last_error()}")
            return outputs
        finally:
            self._calls.pop()
            if self._closed:
                self._destroy_unused()

    def close(self) -> None:
        """Give back the model's memory, and with the last model of the process the pool's threads.

        Calls of other threads that run now end as usual, and the last of them gives the memory back.
        """
        self._closed = True
        self._destroy_unused()

    def _destroy_unused(self) -> None:
        if os.getpid() not in self._calls:
            with suppress(IndexError):  # another thread may have done it
                self._destroy(self._model.pop())

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self.close()


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that compiled code can write to directly."""
    raw = np.empty(math.prod(shape) * dtype.itemsize + _ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, raw, -_address(raw) % _ALIGNMENT)


def _addresses(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*map(_address, arrays))


def _address(array: Any) -> int:
    """Of an array's first element. A small model's call takes as long as a few of NumPy's own ways to tell it."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, empty, or of a type that has no buffers
        return int(array.__array_interface__["data"][0])
