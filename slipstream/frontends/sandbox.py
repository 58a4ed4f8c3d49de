"""The client of `onnx_worker`: runs its jobs, and turns a crash of the worker into an error."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any

from slipstream import errors
from slipstream.processes.child import child_environment

_SECONDS = 900.0


class _Worker:
    """One worker process, started on first use and again after it ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        self._lock = threading.Lock()

    def call(self, job: str, arguments: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            request = {"job": job, "arguments": arguments, "seconds": _SECONDS}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                self.stop()
                return {"crash": "the worker process died"}
            answer: dict[str, Any] = json.loads(line)
            return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the worker
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slipstream.frontends.onnx_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C is handled by this process, not by the worker
            )
            atexit.register(self.stop)
        return self._process

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout, self._log):
            if stream is not None:
                stream.close()
        process.wait()


_worker = _Worker()


def call(job: str, **arguments: Any) -> dict[str, Any]:
    """Run a job of `onnx_worker`; its `SlipstreamError`s come back as themselves, a crash as `ModelError`."""
    answer = _worker.call(job, arguments)
    if "result" in answer:
        result: dict[str, Any] = answer["result"]
        return result
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["message"])
    what, *details = str(answer["crash"]).strip().splitlines()
    raise errors.ModelError(
        f"ONNX Runtime gave up on this model ({details[-1] if details else what}): "
        "the file is damaged, or it needs an operator or a shape ONNX Runtime does not support"
    )
