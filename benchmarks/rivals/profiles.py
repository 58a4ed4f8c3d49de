"""What each operator of a model takes while the whole model runs, from each runtime's own clocks.

A profile runs the model (`run`) and then has its operators in the order of their calls (`operators`) and for each run
what they took (`seconds`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.rivals.computation import (
    Computation,
    onnxruntime_computation,
    openvino_computation,
    slipstream_computation,
    weights_of_convolutions,
)
from slipstream.artifact.directory import artifact_in
from slipstream.artifact.loaded import check_artifact
from slipstream.errors import ArtifactError
from slipstream.runtime.library import ModelLibrary
from slipstream.runtime.plan import prepared_name

Array = np.ndarray[Any, Any]
Names = Mapping[str, tuple[str, Sequence[str]]]
"""Of compiled functions: the name for people and the steps, as `slipstream.graph.describe.names` has them."""


class OurProfile:
    """The library of an artifact, with the threads that its plan has for each operator.

    `names` is asked with the functions that the model calls.
    """

    def __init__(
        self, directory: Path, feeds: Mapping[str, Array], threads: int, names: Callable[[Sequence[str]], Names]
    ) -> None:
        directory = artifact_in(directory)
        parts = check_artifact(directory).single_shapes[0].all_parts
        if len(parts) > 1 or not parts[0].prefix:
            raise ArtifactError(f"{directory} is not one library: its operators cannot be timed")
        (part,) = parts
        weights = directory / part.weights_file
        self._library = ModelLibrary(directory / part.file, part.prefix, weights, part.outputs, threads)
        self._inputs = [np.ascontiguousarray(feeds[spec.name], spec.dtype) for spec in part.inputs]
        self._functions = [prepared_name(step) for step in self._library.steps]
        self._names = names(self._functions)
        self._seconds: list[list[float]] = []

    def run(self) -> None:
        self._seconds.append([float(taken) / 1e9 for taken in self._library.profile(self._inputs)])

    def operators(self) -> list[tuple[str, Computation]]:
        named = [(function, *self._names.get(function, (function, ()))) for function in self._functions]
        return [(name, slipstream_computation(name, kinds, function)) for function, name, kinds in named]

    def seconds(self) -> list[list[float]]:
        return self._seconds


class OnnxRuntimeProfile:
    """A session of ONNX Runtime that writes its own profile into `folder`."""

    def __init__(self, model: Path, feeds: Mapping[str, Array], threads: int, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        self._session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"], disabled_optimizers=["Pad_Fusion"]
        )
        self._feeds = {value.name: feeds[value.name] for value in self._session.get_inputs()}
        self._weights = weights_of_convolutions(onnx.load(str(model), load_external_data=False))
        self._runs = 0
        self._found: list[list[dict[str, Any]]] = []

    def run(self) -> None:
        self._session.run(None, self._feeds)
        self._runs += 1

    def operators(self) -> list[tuple[str, Computation]]:
        events = self._events()[0]
        computed = [onnxruntime_computation(event, self._weights) for event in events]
        return [(event["name"].removesuffix("_kernel_time"), one) for event, one in zip(events, computed, strict=True)]

    def seconds(self) -> list[list[float]]:
        return [[event["dur"] / 1e6 for event in run] for run in self._events()]

    def _events(self) -> list[list[dict[str, Any]]]:
        """For each run the entries of its kernels, in the order they ran; it cannot run any more."""
        if not self._found:
            path = Path(self._session.end_profiling())
            events = json.loads(path.read_text())
            path.unlink()
            kernels = [e for e in events if e["cat"] == "Node" and e["name"].endswith("_kernel_time")]
            each = len(kernels) // self._runs
            self._found = [kernels[start : start + each] for start in range(0, len(kernels), each)]
        return self._found


class OpenVinoProfile:
    """A model that OpenVINO compiled with `PERF_COUNT`."""

    def __init__(self, compiled: Any, feeds: Mapping[str, Array]) -> None:
        self._request, self._feeds = compiled.create_infer_request(), dict(feeds)
        nodes = compiled.get_runtime_model().get_ordered_ops()
        self._nodes = {node.get_friendly_name(): node for node in nodes}
        self._runs: list[Any] = []

    def run(self) -> None:
        self._request.infer(self._feeds, share_inputs=True, share_outputs=True)
        self._runs.append([one for one in self._request.get_profiling_info() if one.node_name in self._nodes])

    def operators(self) -> list[tuple[str, Computation]]:
        return [(one.node_name, openvino_computation(self._nodes[one.node_name])) for one in self._runs[0]]

    def seconds(self) -> list[list[float]]:
        return [[one.real_time.total_seconds() for one in run] for run in self._runs]
