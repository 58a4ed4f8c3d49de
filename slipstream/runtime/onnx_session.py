"""Running the parts of a model that are not compiled. ONNX Runtime is imported when the first of them is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.machine.exact_onnx import cpu_session

_QUIET = 4


class OnnxSession:
    """An ONNX file in ONNX Runtime. `run` may be called from several threads."""

    def __init__(self, path: Path, outputs: Sequence[str], threads: int) -> None:
        # Read when ONNX Runtime is imported: switches its telemetry off.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _QUIET
        options.intra_op_num_threads = threads
        # Threads that spin after a part's end would occupy the cores that the next part computes on.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = cpu_session(str(path), options)
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = list(outputs)

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name; `values` may hold more than the inputs."""
        results = self._session.run(self._outputs, {name: values[name] for name in self._inputs})
        return dict(zip(self._outputs, results, strict=True))

    def close(self) -> None:
        """Give back the session's memory."""
        self._session = None
