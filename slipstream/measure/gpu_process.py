"""The process that has the GPU, from both sides: what starts and ends it, and what it does.

It is started afresh and not forked: CUDA does not work in a child of a process that has touched it, and whether some
library of the parent did is hard to say. Starting takes seconds, so the next one is started before it is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from slipstream.measure.channel import Channel, ChannelClosedError
from slipstream.measure.processes import End, last_lines
from slipstream.measure.types import FailureKind

_PR_SET_PDEATHSIG = 1
_PATIENCE = 5.0


class GpuProcess:
    """The owner's side. It answers `launch` and `launch_again` over `channel`, one at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.is_new = True
        self._log = os.memfd_create("slipstream-log", os.MFD_CLOEXEC)
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slipstream.measure.gpu_process", str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the owner to handle
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def last_lines(self) -> str:
        """The end of what it printed."""
        return last_lines(self._log)

    def end(self) -> End:
        """How it ended; one that does not go is killed."""
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


def main() -> None:
    """`python -m slipstream.measure.gpu_process FD OWNER`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return
    from slipstream.cli.tvm_import import import_tvm_without_torch

    import_tvm_without_torch()
    from slipstream.cuda_libraries import load_runtime
    from slipstream.measure.launcher import Launcher

    load_runtime()
    launcher = Launcher()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    with contextlib.suppress(ChannelClosedError):
        while True:
            channel.send(_answer(launcher, channel.receive()))


def _answer(launcher: Any, request: dict[str, Any]) -> dict[str, Any]:
    jobs = {"launch": launcher.launch, "launch_again": launcher.launch_again}
    (job, options), *_ = request.items()
    try:
        answer: dict[str, Any] = jobs[job](**options)
        return answer
    except Exception as error:  # TVM raises whatever it likes; any of it is this program's failure
        text = str(error).strip() or type(error).__name__
        kind = FailureKind.OUT_OF_MEMORY if "out of memory" in text else FailureKind.RUN_ERROR
        return {"failure": kind.value, "message": text.splitlines()[-1]}


if __name__ == "__main__":
    main()
