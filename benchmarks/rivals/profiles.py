"""What each operator of a model takes while the whole model runs: in our compiled form, and in ONNX Runtime."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from slipstream.frontends.inputs import Array, TensorSpec
from slipstream.graph.build import build
from slipstream.machine.target import Target
from slipstream.machine.threads import use_threads

# Calls of the virtual machine itself: they reserve memory or reshape without touching it.
_MACHINERY = ("vm.builtin.",)


class OurProfile:
    """A module with scheduled operators in TVM's virtual machine, which reports when each of them begins and ends.

    The library of an artifact runs the same compiled operators without such reports.
    """

    def __init__(
        self, scheduled: tvm.IRModule, target: Target, inputs: Sequence[TensorSpec], feeds: dict[str, Array]
    ) -> None:
        use_threads(target.threads)
        built = build(scheduled, target)
        self._machine = relax.VirtualMachine(built.executable, tvm.cpu())
        weights = tvm.runtime.convert([tvm.runtime.tensor(weight) for weight in built.weights])
        self._arguments = [*(tvm.runtime.tensor(feeds[spec.name]) for spec in inputs), weights]
        self._machine.set_instrument(self._note)
        self._began = 0.0
        self._calls: list[tuple[str, float]] = []

    def run(self) -> list[tuple[str, float]]:
        """(function, seconds) of one run, in the order of the calls."""
        self._calls = []
        self._machine["main"](*self._arguments)
        return [call for call in self._calls if not call[0].startswith(_MACHINERY)]

    def _note(self, _: Any, name: str, before: bool, *arguments: Any) -> int:
        if before:
            self._began = time.perf_counter()
        else:
            self._calls.append((str(name), time.perf_counter() - self._began))
        return 0


class OnnxRuntimeProfile:
    """A session of ONNX Runtime that writes its own profile into `folder`."""

    def __init__(self, model: Path, feeds: dict[str, Array], threads: int, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._feeds = feeds
        self._runs = 0

    def run(self) -> None:
        self._session.run(None, self._feeds)
        self._runs += 1

    def end(self) -> list[list[dict[str, Any]]]:
        """For each run the entries of its kernels, in the order they ran."""
        events = json.loads(Path(self._session.end_profiling()).read_text())
        kernels = [e for e in events if e["cat"] == "Node" and e["name"].endswith("_kernel_time")]
        each = len(kernels) // self._runs
        return [kernels[start : start + each] for start in range(0, len(kernels), each)]
