"""The client of `onnx_worker`: runs its jobs, and turns a crash of the worker into an error."""

from __future__ import annotations

import atexit
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slipstream import errors
from slipstream.processes.channel import Channel, ChannelClosedError
from slipstream.processes.child import child_environment

_SECONDS = 900.0


class _Worker:
    """One worker process, started on first use and again after it ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def call(self, job: str, arguments: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            channel = self._running()
            try:
                channel.send({"job": job, "arguments": arguments, "seconds": _SECONDS})
                return channel.receive()
            except ChannelClosedError:
                self.stop()
                return {"crash": "the worker process died"}

    def _running(self) -> Channel:
        if self._channel is not None and self._process is not None and self._process.poll() is None:
            return self._channel
        self.stop()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slipstream.frontends.onnx_worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=child_environment(),
                start_new_session=True,  # Ctrl-C is handled by this process, not by the worker
            )
        self._channel = Channel(ours)
        return self._channel

    def stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.wait()
        self._channel = self._process = None


class _Here:
    """Runs jobs in this process."""

    def call(self, job: str, arguments: dict[str, Any]) -> dict[str, Any]:
        from slipstream.frontends.onnx_worker import JOBS

        return {"result": JOBS[job](**arguments)}


_worker: _Worker | _Here = _Worker()


@contextmanager
def in_this_process() -> Iterator[None]:
    """Run the jobs without a worker: for a process that is itself a forked copy, which may crash."""
    global _worker
    worker, _worker = _worker, _Here()
    try:
        yield
    finally:
        _worker = worker


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
