"""The fork server: a process that has imported and initialised what its workers need, and forks them in milliseconds.

It is started with the dotted name of a function, `module:prepare`, and options as JSON. The function prepares the
process (imports, a first compilation) and returns the roles that workers can have, by name. The owner sends requests
as JSON over a packet socket, with a new worker's socket and files attached, and receives how workers ended. When the
owner has ended (end of file, or another parent), the server kills its workers and ends.
Started by `slipstream.processes.fork_server`, never by hand.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from slipstream.processes.channel import Channel
from slipstream.processes.child import die_with_parent
from slipstream.processes.limits import limit, limit_memory, resident_bytes

_LARGEST_REQUEST = 4096
# What a worker may print; the file is in memory.
_LOG_BYTES = 1 << 20
_GRACE_SECONDS = 1.0

Role = Callable[[Channel, list[int]], None]
"""What a worker does, with its channel and the files it was given, until its owner closes the channel."""
Prepare = Callable[[dict[str, Any]], tuple[Mapping[str, Role], dict[str, Any]]]
"""Options -> the roles by name, and facts for the owner."""


@dataclass(frozen=True)
class _Worker:
    name: int
    has_grace: bool


class Server:
    """Forks workers of these roles and reports how they ended."""

    def __init__(self, control: socket.socket, roles: Mapping[str, Role]) -> None:
        self._control = control
        self._roles = roles
        self._workers: dict[int, _Worker] = {}
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        owner = os.getppid()
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        try:
            while os.getppid() == owner:
                ready = {fd for fd, _ in poll.poll(1000)}
                if self._woken in ready:
                    with suppress(BlockingIOError):
                        os.read(self._woken, 4096)
                if self._control.fileno() in ready and not self._answer_request():
                    break
                self._reap()
        finally:
            self._kill_all()

    def _answer_request(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _LARGEST_REQUEST, 8)
        except ConnectionError:
            return False
        if not data:
            return False
        request = json.loads(data)
        if "fork" in request:
            self._fork(request, fds)
        elif "kill" in request:
            self._signal([request["kill"]], signal.SIGKILL)
        elif "pause" in request:
            self._signal(request["pause"], signal.SIGSTOP)
            self.send({"paused": True})
        elif "resume" in request:
            self._signal(request["resume"], signal.SIGCONT)
        return True

    def _signal(self, names: list[int], number: signal.Signals) -> None:
        for pid, worker in self._workers.items():
            if worker.name in names:
                _signal_group(pid, number)

    def _fork(self, request: dict[str, Any], fds: list[int]) -> None:
        server = os.getpid()
        tied, tying = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(tied)
            try:
                self._become_worker(server, request, fds, tying)
            finally:
                os._exit(1)  # no destructors: TVM's may wait for a remote device
        # A worker that was paused before it is tied to this process would outlive it.
        os.close(tying)
        os.read(tied, 1)
        os.close(tied)
        self._workers[pid] = _Worker(request["fork"], request["has_grace"])
        for fd in fds:
            os.close(fd)
        self.send({"forked": request["fork"], "pid": pid, "shared_bytes": resident_bytes()})

    def _become_worker(self, server: int, request: dict[str, Any], fds: list[int], tying: int) -> None:
        if not die_with_parent(server):
            return
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        os.close(tying)
        channel, log, *files = fds
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
        limit(resource.RLIMIT_CORE, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LOG_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        # The owner watches the resident size; this stops what outruns it or maps everything at once.
        limit_memory(2 * request["memory_bytes"])
        self._roles[request["role"]](Channel(socket.socket(fileno=channel)), files)

    def _reap(self) -> None:
        while self._workers:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            # What the program may have started itself.
            _signal_group(pid, signal.SIGKILL)
            worker = self._workers.pop(pid, None)
            if worker is not None:
                code = os.waitstatus_to_exitcode(status)
                self.send({"ended": worker.name, "status": code, "peak_bytes": usage.ru_maxrss * 1024})

    def send(self, message: dict[str, Any]) -> None:
        """Tell the owner, if it is still there."""
        with suppress(OSError):  # `serve` notices that the owner has ended
            self._control.send(json.dumps(message).encode())

    def _kill_all(self) -> None:
        """End the workers; those that have something to hand back get a second, as their channels are closed too."""
        for pid, worker in self._workers.items():
            if not worker.has_grace:
                _signal_group(pid, signal.SIGKILL)
        deadline = time.monotonic() + _GRACE_SECONDS
        while any(worker.has_grace for worker in self._workers.values()) and time.monotonic() < deadline:
            time.sleep(0.01)
            self._reap()
        for pid in self._workers:
            _signal_group(pid, signal.SIGKILL)
        for pid in self._workers:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
        return
    with suppress(ProcessLookupError):  # it has not made its own group yet
        if os.getpgid(pid) == os.getpgrp():
            os.kill(pid, number)


def main() -> None:
    """`python -m slipstream.processes.server FD MODULE:PREPARE OPTIONS SCRATCH`: the control socket, the function that
    prepares, its options as JSON, and a folder that is removed when the server ends."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A library may leave an idle thread behind. It holds nothing that a worker needs, and does not exist in one.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    module, _, name = sys.argv[2].partition(":")
    prepare: Prepare = getattr(importlib.import_module(module), name)
    roles, facts = prepare(json.loads(sys.argv[3]))
    gc.collect()
    gc.freeze()
    server = Server(control, roles)
    try:
        server.send({"ready": facts})
        server.serve()
    finally:
        shutil.rmtree(sys.argv[4], ignore_errors=True)


if __name__ == "__main__":
    main()
