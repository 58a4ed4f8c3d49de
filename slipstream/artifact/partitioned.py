"""Calling a model that was cut: its compiled parts and those that ONNX Runtime runs, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.artifact.manifest import Part
from slipstream.artifact.runtime import Executor, dense_array
from slipstream.errors import ArtifactError
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
        self._parts = list(parts)
        self._closed = False

    @property
    def compiled(self) -> list[tuple[Part, Executor]]:
        """The parts that are compiled."""
        return [(part, run) for part, run in self._parts if isinstance(run, Executor)]

    def _to_device(self, spec: TensorSpec, value: Any) -> Any:
        return dense_array(spec, value)

    def _run(self, tensors: list[Any]) -> list[Any]:
        if self._closed:
            raise ArtifactError("the model was closed: load it again")
        values = dict(zip((spec.name for spec in self.inputs), tensors, strict=True))
        for part, run in self._parts:
            try:
                values.update(run.run(values) if isinstance(run, OnnxSession) else _run_compiled(part, run, values))
            except Exception as error:
                if isinstance(run, OnnxSession):
                    said = str(error).strip().splitlines()[0]
                    raise ArtifactError(f"ONNX Runtime failed in {part.name} of the model: {said}") from error
                raise
        # An output that is an input must not be the caller's own memory.
        given = {spec.name for spec in self.inputs}
        return [values[spec.name].copy() if spec.name in given else values[spec.name] for spec in self.outputs]

    def close(self) -> None:
        self._closed = True
        for _, run in self._parts:
            run.close()


def _run_compiled(part: Part, run: Executor, values: dict[str, Any]) -> dict[str, Any]:
    results = run(*(values[spec.name] for spec in part.inputs))
    return dict(zip((spec.name for spec in part.outputs), results, strict=True))
