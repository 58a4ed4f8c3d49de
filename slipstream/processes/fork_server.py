"""The owner's side of the fork server: starting it, asking for workers, watching and ending them."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from slipstream.errors import SlipstreamError
from slipstream.machine.target import Target
from slipstream.processes.channel import Channel
from slipstream.processes.child import child_environment

_PAGE = os.sysconf("SC_PAGE_SIZE")
_START_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_LAST_LINES = 20
_LOG_TAIL = 65536
# What TVM prints of a crash is mostly the interpreter that called it.
_INTERPRETER = re.compile(r'\s*File "(Python|Objects|Modules|\./Include|<unknown>|<frozen|\./signal)')


class ServerLostError(SlipstreamError):
    """The fork server ended although nobody asked it to."""


@dataclass(frozen=True)
class End:
    """How a worker ended: exit status (negative: a signal) and the most memory it ever held."""

    status: int
    peak_bytes: int

    @property
    def reason(self) -> str:
        if self.status < 0:
            with suppress(ValueError):
                return f"killed by {signal.Signals(-self.status).name}"
            return f"killed by signal {-self.status}"
        return f"ended with exit status {self.status} before it answered"


@dataclass(eq=False)
class WorkerProcess:
    """A worker as its owner sees it. `end` is known once the server has reaped it."""

    name: int
    channel: Channel
    log: int
    pid: int = 0
    end: End | None = None
    shared_bytes: int = 0

    def used_bytes(self) -> int:
        """What it holds beyond what it was forked with."""
        if not self.pid:
            return 0
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                resident = int(file.read().split()[1]) * _PAGE
        except OSError:
            return 0
        return resident - self.shared_bytes

    def last_lines(self) -> str:
        """The end of what it printed."""
        return last_lines(self.log)


def last_lines(log: int) -> str:
    """The end of what a process printed to the file `log`."""
    size = os.fstat(log).st_size
    data = os.pread(log, _LOG_TAIL, max(0, size - _LOG_TAIL))
    lines = data.decode(errors="replace").strip().splitlines()
    return "\n".join([line for line in lines if not _INTERPRETER.match(line)][-_LAST_LINES:])


class Speaker(Protocol):
    """A process of ours that answers over a channel."""

    @property
    def channel(self) -> Channel: ...


S = TypeVar("S", bound=Speaker)


class ForkServer:
    """One server process and the workers that were forked from it."""

    def __init__(self, target: Target, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._workers: dict[int, WorkerProcess] = {}
        self._next_name = 0
        self._ready = False
        self._paused = False
        self.import_seconds = 0.0
        self.scratch = _make_scratch() if target.gpu is not None else None
        self._process, self._control = _start(target, self.scratch)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        if not self._ready:
            self._pump(_START_SECONDS)
        if not self._ready:
            raise ServerLostError("the measuring server did not start in time")

    def fork(self, *files: int) -> WorkerProcess:
        """A new worker; `files` are descriptors it inherits."""
        self.wait_until_ready()
        ours, theirs = socket.socketpair()
        log = os.memfd_create("slipstream-log", os.MFD_CLOEXEC)
        fcntl.fcntl(log, fcntl.F_SETFL, os.O_APPEND)
        self._next_name += 1
        worker = WorkerProcess(self._next_name, Channel(ours), log)
        self._workers[worker.name] = worker
        request = {"fork": worker.name, "memory_bytes": self._memory_bytes}
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno(), log, *files])
        except OSError as error:
            raise ServerLostError(f"the measuring server is gone: {error}") from error
        finally:
            theirs.close()
        return worker

    def poll(self, workers: Sequence[S], timeout: float) -> list[S]:
        """Those of `workers` that have something to say or have ended, after at most `timeout` seconds."""
        self._pump(0.0)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        by_fd = {worker.channel.fileno(): worker for worker in workers}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(timeout * 1000)]
        if self._control.fileno() in ready:
            self._pump(0.0)
        return [by_fd[fd] for fd in ready if fd in by_fd]

    def end_of(self, worker: WorkerProcess, patience: float = 5.0) -> End:
        """Wait for a worker that has hung up; one that does not go is killed."""
        deadline = time.monotonic() + patience
        while worker.end is None and time.monotonic() < deadline:
            self._pump(0.05)
        if worker.end is None:
            self._kill(worker)
            while worker.end is None:
                self._pump(1.0)
        return worker.end

    def kill_and_wait(self, worker: WorkerProcess) -> None:
        """Kill a worker and see it gone, so that it takes nothing from the next one."""
        if worker.end is None:
            self._kill(worker)
        self.end_of(worker)

    def pause(self, workers: list[WorkerProcess]) -> None:
        """Stop workers where they are, until `resume`: returns when none of them takes time from anybody."""
        self._paused = False
        self._send({"pause": [worker.name for worker in workers]})
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self._paused:
            if time.monotonic() > deadline:
                raise ServerLostError("the measuring server stopped answering")
            self._pump(1.0)

    def resume(self, workers: list[WorkerProcess]) -> None:
        """Let paused workers go on."""
        self._send({"resume": [worker.name for worker in workers]})

    def discard(self, worker: WorkerProcess) -> None:
        """End a worker that is not needed any more, whatever it is doing."""
        if worker.end is None:
            with suppress(ServerLostError):
                self._kill(worker)
        worker.channel.close()
        if self._workers.pop(worker.name, None):
            os.close(worker.log)

    def close(self) -> None:
        """End everything. Safe to call twice."""
        for worker in list(self._workers.values()):
            worker.channel.close()
            os.close(worker.log)
        self._workers.clear()
        self._control.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _kill(self, worker: WorkerProcess) -> None:
        self._send({"kill": worker.name})

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(request).encode())
        except OSError as error:
            raise ServerLostError(f"the measuring server is gone: {error}") from error

    def _pump(self, timeout: float) -> None:
        """Read what the server has to tell; wait for at most `timeout` if there is nothing."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while poll.poll(timeout * 1000):
            timeout = 0.0
            try:
                data = self._control.recv(4096)
            except OSError as error:
                raise ServerLostError(f"the measuring server is gone: {error}") from error
            if not data:
                raise ServerLostError(f"the measuring server ended with status {self._process.wait()}")
            self._note(json.loads(data))
        if self._process.poll() is not None:
            raise ServerLostError(f"the measuring server ended with status {self._process.returncode}")

    def _note(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready = True
            self.import_seconds = float(message["import_seconds"])
        self._paused = self._paused or "paused" in message
        worker = self._workers.get(message.get("forked", message.get("ended", 0)))
        if worker is None:
            return
        if "forked" in message:
            worker.pid, worker.shared_bytes = message["pid"], message["shared_bytes"]
        else:
            worker.end = End(message["status"], message["peak_bytes"])


def _make_scratch() -> Path:
    """A folder for libraries on their way from a builder to the GPU, in memory if that can be had."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="slipstream-", dir=memory if os.access(memory, os.W_OK) else None))


def _start(target: Target, scratch: Path | None) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # The server must have no threads when it forks, and NumPy's would fight with the program's.
    environment = child_environment(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONHASHSEED="0")
    if target.gpu is not None:
        # TVM asks for devices wherever it pleases; a builder that had touched CUDA could not be forked.
        environment["CUDA_VISIBLE_DEVICES"] = ""
    folders = [] if scratch is None else [str(scratch)]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "slipstream.processes.server",
            str(theirs.fileno()),
            json.dumps(asdict(target)),
            *folders,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env=environment,
        start_new_session=True,  # Ctrl-C is for the owner to handle
    )
    theirs.close()
    return process, ours
