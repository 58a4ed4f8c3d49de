"""What each operator of a model takes in ONNX Runtime, by its own profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slipstream.frontends.inputs import Array


class OnnxRuntimeProfile:
    """A session that writes its profile into `folder`."""

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
