"""The process that has a GPU, as its owner sees it; `gpu_worker.py` is what it does.

It is started, not forked: CUDA does not work in a child of a process that has touched it, and whether some library of
the parent has is hard to tell. Starting takes seconds, so the next one is started before it is needed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

from slipstream.measure.trial import Answer, failure_in, failure_of_end
from slipstream.measure.types import Failure, FailureKind
from slipstream.processes.channel import Channel, ChannelClosedError
from slipstream.processes.child import child_environment
from slipstream.processes.fork_server import End
from slipstream.processes.log import last_lines, open_log

WORKER = "slipstream.measure.devices.gpu_worker"
_PATIENCE = 5.0
# The first program of a process also pays for its start and its CUDA context.
_CONTEXT_SECONDS = 60.0


class GpuProcess:
    """It answers `launch`, `sample` and `forget` over `channel`, one at a time. Of all GPUs it sees `gpu` alone."""

    def __init__(self, gpu: str) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.is_new = True
        self._log = open_log()
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=child_environment(CUDA_VISIBLE_DEVICES=gpu),
            start_new_session=True,  # Ctrl-C is for the owner to handle
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def seconds_until_answer(self, run_seconds: float) -> float:
        """How long its next run may take, given what a run may."""
        self.is_new, was_new = False, self.is_new
        return run_seconds + (_CONTEXT_SECONDS if was_new else 0.0)

    def last_lines(self) -> str:
        """The end of what it printed."""
        return last_lines(self._log)

    def end(self) -> End:
        """How it ended; one that does not end is killed."""
        try:
            status = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return End(status, peak_bytes=0)

    def close(self) -> None:
        """End it, whatever it is doing. Safe to call twice."""
        self.channel.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._log)


class HeldGpu:
    """A GPU and the process that has it; after the first loss also a spare, for starting one takes seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.process = GpuProcess(name)
        self._spare: GpuProcess | None = None

    def replace(self) -> None:
        """End the process that has the GPU; the next run gets a new one."""
        self.process.close()
        self.process, self._spare = self._spare or GpuProcess(self._name), GpuProcess(self._name)

    def answer(self, run_seconds: float) -> Answer | Failure:
        """What its process has answered by now. After a failure it is replaced, unless only the result is wrong."""
        process = self.process
        try:
            answer = process.channel.receive(0.0)
        except TimeoutError:
            failure = Failure(FailureKind.RUN_TIMEOUT, f"took longer than {run_seconds:g} s")
        except ChannelClosedError:
            failure = failure_of_end(process.end(), process.last_lines(), False, sys.maxsize)
        else:
            if "failure" not in answer:
                return {**answer, "noisy": False}
            failure = failure_in(answer, process.last_lines())
            if failure.kind is FailureKind.WRONG_RESULT:
                return failure
        self.replace()
        return failure

    def close(self) -> None:
        self.process.close()
        if self._spare is not None:
            self._spare.close()
