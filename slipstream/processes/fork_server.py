"""The owner's side of the fork server: starting it, asking for workers, watching and ending them."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slipstream.errors import SlipstreamError
from slipstream.processes.channel import Channel, Speaker
from slipstream.processes.child import child_environment
from slipstream.processes.log import last_lines, open_log

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_START_SECONDS = 120.0
_ANSWER_SECONDS = 10.0


class ServerLostError(SlipstreamError):
    """The fork server ended although its owner did not end it."""


@dataclass(frozen=True)
class End:
    """How a process ended: exit status (negative: a signal) and the most memory it ever held."""

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
    """A worker as its owner sees it. `end` is set once the server has reaped it."""

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

    def used_seconds(self) -> float:
        """Processor time that its threads have used together."""
        if not self.pid:
            return 0.0
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()  # a name may have spaces
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def last_lines(self) -> str:
        """The end of what it printed."""
        return last_lines(self.log)


S = TypeVar("S", bound=Speaker)


class ForkServer:
    """One server process and the workers that were forked from it.

    `prepare` and `options` say what the server does before it forks (see `server.py`); `facts` are what it reports
    then. A worker may use `memory_bytes` more than it was forked with. `scratch` is a folder for files that workers
    exchange, removed when either side ends.
    """

    def __init__(
        self, prepare: str, options: dict[str, Any], memory_bytes: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self._memory_bytes = memory_bytes
        self._workers: dict[int, WorkerProcess] = {}
        self._next_name = 0
        self._ready = self._paused = False
        self.facts: dict[str, Any] = {}
        memory = Path("/dev/shm")
        # Containers often mount it noexec, and what workers exchange is code too.
        usable = os.access(memory, os.W_OK) and not os.statvfs(memory).f_flag & os.ST_NOEXEC
        folder = memory if usable else None
        self.scratch = Path(tempfile.mkdtemp(prefix="slipstream-", dir=folder))
        arguments = [prepare, json.dumps(options), str(self.scratch)]
        self._process, self._control = _start(arguments, environment or {})

    @classmethod
    def start(
        cls, prepare: str, options: dict[str, Any], memory_bytes: int, environment: Mapping[str, str]
    ) -> ForkServer:
        """A new server, or the one like it that was started early."""
        for asked, server in _started_early:
            if asked == (prepare, options, environment):
                _started_early.remove((asked, server))
                server._memory_bytes = memory_bytes
                return server
        return cls(prepare, options, memory_bytes, environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it has prepared itself, at any time."""
        return self._ready

    def wait_until_ready(self) -> None:
        if not self._ready:
            self._pump(_START_SECONDS)
        if not self._ready:
            raise ServerLostError("the measuring server did not start in time")

    def fork(self, role: str, *files: int, has_grace: bool = False) -> WorkerProcess:
        """A new worker; `files` are descriptors it inherits. With grace it may finish when the server ends."""
        self.wait_until_ready()
        ours, theirs = socket.socketpair()
        log = open_log()
        self._next_name += 1
        worker = WorkerProcess(self._next_name, Channel(ours), log)
        self._workers[worker.name] = worker
        request = {"fork": worker.name, "role": role, "memory_bytes": self._memory_bytes, "has_grace": has_grace}
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno(), log, *files])
        except OSError as error:
            raise ServerLostError(f"the measuring server has ended: {error}") from error
        finally:
            theirs.close()
        return worker

    def poll(self, speakers: Sequence[S], timeout: float) -> list[S]:
        """Those of `speakers` that have sent something or have ended, after at most `timeout` seconds."""
        self._pump(0.0)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        by_fd = {speaker.channel.fileno(): speaker for speaker in speakers}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(timeout * 1000)]
        if self._control.fileno() in ready:
            self._pump(0.0)
        return [by_fd[fd] for fd in ready if fd in by_fd]

    def end_of(self, worker: WorkerProcess, patience: float = 5.0) -> End:
        """Wait for a worker that has closed its channel; one that does not end is killed."""
        deadline = time.monotonic() + patience
        while worker.end is None and time.monotonic() < deadline:
            self._pump(0.05)
        if worker.end is None:
            self._kill(worker)
            while worker.end is None:
                self._pump(1.0)
        return worker.end

    def kill_and_wait(self, worker: WorkerProcess) -> None:
        """Kill a worker and wait for its end, so that it takes no time from the next one."""
        if worker.end is None:
            self._kill(worker)
        self.end_of(worker)

    def pause(self, workers: list[WorkerProcess]) -> None:
        """Stop workers where they are, until `resume`: returns when none of them uses a core."""
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
        """End a worker at once, whatever it is doing."""
        if worker.end is None:
            with suppress(ServerLostError):
                self._kill(worker)
        self.dismiss(worker)

    def dismiss(self, worker: WorkerProcess) -> None:
        """Close a worker's channel: it ends when it has finished what it is doing."""
        worker.channel.close()
        if self._workers.pop(worker.name, None):
            os.close(worker.log)

    def close(self) -> None:
        """End everything. Safe to call twice."""
        for worker in list(self._workers.values()):
            self.dismiss(worker)
        self._control.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def end_unused(self) -> None:
        """End a server that has no workers, at once: it may still be starting, for seconds."""
        self._process.kill()
        self.close()

    def _kill(self, worker: WorkerProcess) -> None:
        self._send({"kill": worker.name})

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(request).encode())
        except OSError as error:
            raise ServerLostError(f"the measuring server has ended: {error}") from error

    def _pump(self, timeout: float) -> None:
        """Read what the server has sent; wait for at most `timeout` if there is nothing."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while poll.poll(timeout * 1000):
            timeout = 0.0
            try:
                data = self._control.recv(4096)
            except OSError as error:
                raise ServerLostError(f"the measuring server has ended: {error}") from error
            if not data:
                raise ServerLostError(f"the measuring server ended with status {self._process.wait()}")
            self._note(json.loads(data))
        if self._process.poll() is not None:
            raise ServerLostError(f"the measuring server ended with status {self._process.returncode}")

    def _note(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready, self.facts = True, message["ready"]
        self._paused = self._paused or "paused" in message
        worker = self._workers.get(message.get("forked", message.get("ended", 0)))
        if worker is None:
            return
        if "forked" in message:
            worker.pid, worker.shared_bytes = message["pid"], message["shared_bytes"]
        else:
            worker.end = End(message["status"], message["peak_bytes"])


_started_early: list[tuple[Any, ForkServer]] = []


@contextmanager
def start_early(prepare: str, options: dict[str, Any], environment: Mapping[str, str]) -> Iterator[None]:
    """Have a server start now, for the first who asks `ForkServer.start` for one like it. If nobody does, it ends."""
    early = ((prepare, options, environment), ForkServer(prepare, options, 0, environment))
    _started_early.append(early)
    try:
        yield
    finally:
        if early in _started_early:
            _started_early.remove(early)
            early[1].end_unused()


def _start(arguments: list[str], environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # The server must have no threads when it forks, and NumPy's would compete with the program's.
    alone = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream.processes.server", str(theirs.fileno()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env=child_environment(**alone, **environment),
        start_new_session=True,  # Ctrl-C is for the owner to handle
    )
    theirs.close()
    return process, ours
