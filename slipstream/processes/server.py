"""The fork server: a process that has imported TVM, compiled once and run nothing, from which workers fork.

It forks one process for every program, so that nothing a program does to its process reaches another. Its owner
sends requests as JSON over a packet socket, a new worker's sockets and files along with them, and learns from it
how workers ended. When the owner is gone (end of file, or another parent), it kills its workers and ends.
Started by `slipstream.processes.fork_server`, never by hand.
"""

from __future__ import annotations

import gc
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
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from slipstream.processes.child import die_with_parent
from slipstream.processes.limits import limit, limit_memory, resident_bytes

_LARGEST_REQUEST = 4096
# A program that prints without end fills its log to here and no further.
_LOG_BYTES = 1 << 20

Work = Callable[[socket.socket, list[int]], None]


class Server:
    """Forks workers that do `work` and tells how they ended."""

    def __init__(self, control: socket.socket, work: Work) -> None:
        self._control = control
        self._work = work
        self._workers: dict[int, int] = {}
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
            self._fork(request["fork"], request["memory_bytes"], fds)
        elif "kill" in request:
            self._signal([request["kill"]], signal.SIGKILL)
        elif "pause" in request:
            self._signal(request["pause"], signal.SIGSTOP)
            self._tell({"paused": True})
        elif "resume" in request:
            self._signal(request["resume"], signal.SIGCONT)
        return True

    def _signal(self, names: list[int], number: signal.Signals) -> None:
        for pid, name in self._workers.items():
            if name in names:
                _signal_group(pid, number)

    def _fork(self, name: int, memory: int, fds: list[int]) -> None:
        server = os.getpid()
        settled, settling = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(settled)
            try:
                self._become_worker(server, memory, fds, settling)
            finally:
                os._exit(1)
        # A worker that was paused before it is tied to this process would outlive it, standing still.
        os.close(settling)
        os.read(settled, 1)
        os.close(settled)
        self._workers[pid] = name
        for fd in fds:
            os.close(fd)
        self._tell({"forked": name, "pid": pid, "shared_bytes": resident_bytes()})

    def _become_worker(self, server: int, memory: int, fds: list[int], settling: int) -> None:
        if not die_with_parent(server):
            return
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        os.close(settling)
        channel, log, *files = fds
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
        limit(resource.RLIMIT_CORE, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LOG_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        # The owner watches the resident size; this stops what outruns it or maps everything at once.
        limit_memory(2 * memory)
        self._work(socket.socket(fileno=channel), files)

    def _reap(self) -> None:
        while self._workers:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            # What the program may have started itself.
            _signal_group(pid, signal.SIGKILL)
            name = self._workers.pop(pid, None)
            if name is not None:
                code = os.waitstatus_to_exitcode(status)
                self._tell({"ended": name, "status": code, "peak_bytes": usage.ru_maxrss * 1024})

    def _tell(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # an owner that is gone is noticed by the loop
            self._control.send(json.dumps(message).encode())

    def _kill_all(self) -> None:
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
    """`python -m slipstream.processes.server FD TARGET [SCRATCH]`: the control socket, the target as JSON, and a folder
    that goes when the server does."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # NVRTC may leave an idle thread behind. It holds nothing that a builder needs, and is not there in one.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    began = time.monotonic()
    import_tvm_without_torch()
    imported = time.monotonic() - began
    from slipstream.machine.cuda import CudaDevice
    from slipstream.machine.target import Target
    from slipstream.measure import worker

    settings: dict[str, Any] = json.loads(sys.argv[2])
    settings.update((name, tuple(settings[name])) for name in ("features", "disabled"))
    if settings["gpu"] is not None:
        settings["gpu"] = CudaDevice(**settings["gpu"])
    target = Target(**settings)
    worker.warm_up(target)
    gc.collect()
    gc.freeze()
    server = Server(control, lambda channel, files: worker.work(channel, files, target))
    control.send(json.dumps({"ready": os.getpid(), "import_seconds": imported}).encode())
    try:
        server.serve()
    finally:
        for scratch in sys.argv[3:]:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
