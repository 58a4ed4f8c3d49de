"""Calling a model that was cut: its compiled parts and those that ONNX Runtime runs, one after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from slipstream.artifact.manifest import Part
from slipstream.artifact.runtime import Executor, dense_array
from slipstream.errors import ArtifactError, first_line
from slipstream.frontends.inputs import TensorSpec
from slipstream.runtime.onnx_session import OnnxSession


class PartitionedExecutor(Executor):
    """Parts in the order in which they run. Calls from several threads run at the same time."""

    def __init__(
        self,
        parts: Sequence[tuple[Part, Executor | OnnxSession]],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        super().__init__(inputs, outputs)
        self._parts = [(part, _CompiledPart(part, run) if isinstance(run, Executor) else run) for part, run in parts]
        self._given = [spec.name for spec in inputs]
        # Lists, whose `append` and `pop` are atomic: a lock could be held by another thread when the process forks.
        self._open = [run for _, run in self._parts]  # none once they are closed
        self._calls: list[int] = []  # the processes of those that run now: a forked child has its parent's too
        self._closed = False

    @property
    def compiled(self) -> list[tuple[Part, Executor]]:
        """The parts that are compiled."""
        return [(part, run.executor) for part, run in self._parts if isinstance(run, _CompiledPart)]

    def _to_device(self, spec: TensorSpec, value: Any) -> Any:
        return dense_array(spec, value)

    def _run(self, tensors: list[Any], same: object = None) -> list[Any]:
        self._calls.append(os.getpid())
        try:
            if self._closed:
                raise ArtifactError("the model was closed: load it again")
            return self._run_parts(dict(zip(self._given, tensors, strict=True)))
        finally:
            self._calls.pop()
            if self._closed:
                self._close_unused()

    def _run_parts(self, values: dict[str, Any]) -> list[Any]:
        for part, run in self._parts:
            try:
                values.update(run.run(values))
            except Exception as error:
                if isinstance(run, _CompiledPart):
                    raise
                raise ArtifactError(f"ONNX Runtime failed in {part.name} of the model: {first_line(error)}") from error
        # An output that is an input must not be the caller's own memory.
        return [values[spec.name].copy() if spec.name in self._given else values[spec.name] for spec in self.outputs]

    def close(self) -> None:
        """Give back what the parts hold; calls of other threads end as usual, the last of them gives it back."""
        self._closed = True
        self._close_unused()

    def _close_unused(self) -> None:
        while os.getpid() not in self._calls and self._open:
            with suppress(IndexError):  # another thread may have done it
                self._open.pop().close()


class _CompiledPart:
    """A compiled part that is given values of ONNX Runtime or of other parts, which have no caller to be told of."""

    def __init__(self, part: Part, executor: Executor) -> None:
        self.part, self.executor = part, executor
        self._inputs = [(spec.name, spec.shape, np.dtype(spec.dtype)) for spec in part.inputs]
        self._outputs = [spec.name for spec in part.outputs]

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        for name, shape, dtype in self._inputs:
            # Compiled code reads as much memory as it was compiled for.
            if values[name].shape != shape or values[name].dtype != dtype:
                got = f"{values[name].dtype}{list(values[name].shape)}"
                raise ArtifactError(f"{name!r} is {got}, compiled was {dtype}{list(shape)}: compile the model again")
        results = self.executor.run_arrays([np.asarray(values[name], order="C") for name, _, _ in self._inputs])
        return dict(zip(self._outputs, results, strict=True))

    def close(self) -> None:
        self.executor.close()
