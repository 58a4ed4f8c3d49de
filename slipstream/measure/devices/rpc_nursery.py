"""A process that has imported TVM and forks workers in milliseconds, each killable and on its own.

The measuring process itself never starts TVM's threads and never blocks in its C++ code. It holds one end of
a socket; when that closes, for whatever reason, the nursery kills every worker, removes the session's
temporary directory and goes.
"""

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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from slipstream.measure.devices.rpc_tracker import DeviceError
from slipstream.processes.child import die_with_parent
from slipstream.tvm_bridge.imports import import_tvm_without_torch

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_GRACE_S = 1.0
_TAIL_BYTES = 4000
_TAIL_LINES = 20

Role = Callable[[Connection, Any], None]


@dataclass(frozen=True)
class Worker:
    """A forked process. It takes and sends messages over `connection`; what it prints goes to `log`."""

    pid: int
    connection: Connection
    log: Path

    def send(self, message: Any) -> None:
        """Give the worker something to do; one that has died says so by the end of its connection."""
        with suppress(OSError):
            self.connection.send(message)

    def last_lines(self) -> str:
        """The end of what the worker printed."""
        return _tail(self.log)


class Nursery:
    """Starts workers. `directory` is the session's own, removed by `close` or when this process dies."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="slipstream-rpc-"))
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = self.directory / "nursery.log"
        self._workers: list[Worker] = []
        with theirs, self._log.open("wb") as log:
            # Its own session: Ctrl-C is for us to handle, not for it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slipstream.measure.devices.rpc_nursery", str(self.directory)],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start(self, role: str, options: Any) -> Worker:
        """Fork a worker that does `role` (a key of `_roles`); `options` is its second argument."""
        ours, theirs = socket.socketpair()
        log = self.directory / f"worker-{time.monotonic_ns()}.log"
        message = json.dumps({"start": role, "log": str(log)}).encode()
        try:
            with theirs:
                socket.send_fds(self._control, [message], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise self._cannot_start() from error
        connection = Connection(ours.detach())
        try:
            connection.send(options)
            if not connection.poll(_START_TIMEOUT_S):
                raise self._cannot_start()
            worker = Worker(connection.recv(), connection, log)
        except (OSError, EOFError) as error:
            connection.close()
            raise self._cannot_start() from error
        self._workers.append(worker)
        return worker

    def kill(self, worker: Worker) -> None:
        """End a worker and whatever it started, at once."""
        self.dismiss(worker)
        with suppress(OSError):
            self._control.send(json.dumps({"kill": worker.pid}).encode())

    def dismiss(self, worker: Worker) -> None:
        """Let a worker end when it has finished what it is at."""
        self._workers.remove(worker)
        worker.connection.close()
        worker.log.unlink(missing_ok=True)

    def close(self) -> None:
        """End all workers and remove the session's directory."""
        for worker in self._workers:
            worker.connection.close()
        self._workers.clear()
        self._control.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _cannot_start(self) -> DeviceError:
        said = _tail(self._log) or "it said nothing"
        return DeviceError(f"the process that starts measuring workers failed: {said}")


def _tail(log: Path) -> str:
    try:
        data = log.read_bytes()[-_TAIL_BYTES:]
    except OSError:
        return ""
    return "\n".join(data.decode(errors="replace").splitlines()[-_TAIL_LINES:])


def _roles() -> dict[str, Role]:
    from slipstream.measure.devices.rpc_build import build_programs
    from slipstream.measure.devices.rpc_device import run_on_device

    return {"build": build_programs, "device": run_on_device}


def _tend(control: socket.socket, roles: dict[str, Role]) -> None:
    """Fork and kill as told, until there is nobody left to tell."""
    alive: set[int] = set()
    while True:
        readable, _, _ = select.select([control], [], [], 0.2)
        _reap(alive)
        if not readable:
            continue
        message, fds, _, _ = socket.recv_fds(control, 65536, 1)
        if not message:
            break
        order = json.loads(message)
        if "kill" in order:
            # Only what is not reaped yet: another process cannot have its number.
            if order["kill"] in alive:
                _kill_group(order["kill"])
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            _work(roles[order["start"]], fds[0], order["log"])
        alive.add(pid)
        os.close(fds[0])
    # Their connections have ended too: those that are not stuck leave by themselves, and politely.
    deadline = time.monotonic() + _GRACE_S
    while alive and time.monotonic() < deadline:
        time.sleep(0.01)
        _reap(alive)
    for pid in alive:
        _kill_group(pid)
    for pid in alive:
        os.waitpid(pid, 0)


def _work(role: Role, fd: int, log: str) -> None:
    status = 1
    try:
        os.setsid()
        die_with_parent()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        connection = Connection(fd)
        options = connection.recv()
        connection.send(os.getpid())
        role(connection, options)
        status = 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # No destructors: TVM's would wait for a remote that may be gone.
        os._exit(status)


def _reap(alive: set[int]) -> None:
    for pid in list(alive):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            alive.discard(pid)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # It has not become a group of its own yet.
        os.kill(pid, signal.SIGKILL)


def _main() -> None:
    control = socket.socket(fileno=os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    import_tvm_without_torch()
    try:
        _tend(control, _roles())
    finally:
        shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    _main()
