"""The session's side of the gateway: builds that look like worker processes, and what the fleet has now."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.measure.fleet.ray_connection import ray_environment
from slipstream.processes.channel import Channel, ChannelClosedError, Speaker
from slipstream.processes.child import child_environment
from slipstream.processes.fork_server import End, ForkServer, ServerLostError, WorkerProcess
from slipstream.processes.log import last_lines, open_log

logger = logging.getLogger(__name__)

GATEWAY = "slipstream.measure.fleet.gateway"
_HEADER = struct.Struct("!Q")
_PATIENCE = 5.0
# The gateway sends something every second.
_MOST_SILENCE = 60.0

Message = dict[str, Any]
S = TypeVar("S", bound=Speaker)


class Mailbox(Channel):
    """One of many channels over the gateway's socket: `send` adds what the gateway needs to know."""

    def __init__(self, gateway: GatewayProcess, name: str) -> None:
        self._gateway, self._name = gateway, name
        self.mail: deque[Message] = deque()
        self.stderr = ""
        self.closed = False

    def fileno(self) -> int:
        return self._gateway.fileno()

    def send(self, message: Message) -> None:
        self._gateway.send({"kind": "build", "name": self._name, "request": message})

    def receive(self, timeout: float | None = None) -> Message:
        if not self.mail and not self.is_readable(timeout):
            raise TimeoutError
        message = self.mail.popleft()
        self.stderr = message.get("stderr", "")
        answer: Message = message["answer"]
        return answer

    def is_readable(self, timeout: float | None) -> bool:
        self._gateway.read(0.0 if self.mail else timeout, until=self)
        return bool(self.mail)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._gateway.forget(self._name)


class RemoteBuild(WorkerProcess):
    """A build on some node, as the engine sees a worker."""

    def last_lines(self) -> str:
        return self.channel.stderr if isinstance(self.channel, Mailbox) else ""


@dataclass
class FleetState:
    """What the gateway last said: idle or not, so many `builders` and these `devices`; `unavailable`: why none."""

    builders: int = 0
    devices: list[str] = field(default_factory=list)
    unavailable: str = ""


class GatewayProcess:
    """The process that has Ray, and the socket to it."""

    def __init__(self, options: Message) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_MOST_SILENCE)
        self._socket, self._log = ours, open_log()
        self._process = subprocess.Popen(
            [sys.executable, "-m", GATEWAY, str(theirs.fileno()), str(os.getpid()), json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=child_environment(**ray_environment()),
            start_new_session=True,  # Ctrl-C is for the owner to handle
        )
        theirs.close()
        self.state = FleetState()
        self._received = bytearray()
        self._heard_at = time.monotonic()
        self._boxes: dict[str, Mailbox] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def open(self, name: str) -> Mailbox:
        """A mailbox for what comes to `name`."""
        box = self._boxes[name] = Mailbox(self, name)
        return box

    def forget(self, name: str) -> None:
        if self._boxes.pop(name, None) is not None:
            with suppress(ChannelClosedError):  # with the gateway, the build has ended too
                self.send({"kind": "end", "name": name})

    def send(self, message: Message) -> None:
        data = pickle.dumps(message)
        try:
            self._socket.sendall(_HEADER.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def read(self, timeout: float | None, until: Mailbox | None = None) -> None:
        """Sort what has come into its mailboxes. Waits for at most `timeout`, and on `until` something is for it."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            now = time.monotonic()
            if not poll.poll(1000 * max(0.0, min(deadline - now, _MOST_SILENCE))):
                if time.monotonic() - self._heard_at > _MOST_SILENCE:
                    raise ServerLostError(f"the gateway to Ray has not answered for {_MOST_SILENCE:.0f} s")
                if now >= deadline:
                    return
                continue
            try:
                data = self._socket.recv(1 << 20)
            except OSError as error:
                raise ServerLostError(f"the gateway to Ray has ended: {error}") from error
            if not data:
                raise ServerLostError(f"the gateway to Ray has ended: {self._last_line()}")
            self._received += data
            self._heard_at = time.monotonic()
            self._sort()
            if until is None or until.mail:
                deadline = self._heard_at

    def _sort(self) -> None:
        """Whole messages to where they belong."""
        begin, size = 0, len(self._received)
        while size - begin >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._received, begin)
            end = begin + _HEADER.size + length
            if size < end:
                break
            self._note(pickle.loads(self._received[begin + _HEADER.size : end]))
            begin = end
        del self._received[:begin]

    def _note(self, message: Message) -> None:
        if "to" in message:
            if (box := self._boxes.get(message["to"])) is not None:
                box.mail.append(message)
        elif message["kind"] == "fleet":
            self.state = FleetState(message["builders"], message["devices"], message["unavailable"])
        elif message["kind"] == "say":
            logger.warning("%s", message["text"])

    def _last_line(self) -> str:
        last = (last_lines(self._log).splitlines() or ["it printed nothing"])[-1]
        # Ray ends a process that has not reached the head (its "GCS") for a minute.
        return "the head of the cluster does not answer" if "connect to GCS" in last else last

    def close(self) -> None:
        """End it, and with it what the session has on the nodes. Safe to call twice."""
        self._boxes.clear()
        self._socket.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1


class FleetServer(ForkServer):
    """A fork server on this machine for references, and a gateway for builds."""

    def __init__(self, prepare: str, options: Message, memory_bytes: int, gateway: Message) -> None:
        self.gateway = GatewayProcess(gateway)
        super().__init__(prepare, options, memory_bytes)

    def fork(self, role: str, *files: int, has_grace: bool = False) -> WorkerProcess:
        if role != "build":
            return super().fork(role, *files, has_grace=has_grace)
        self._next_name += 1
        return RemoteBuild(self._next_name, self.gateway.open(str(self._next_name)), log=-1)

    def poll(self, speakers: Sequence[S], timeout: float) -> list[S]:
        self._pump(0.0)
        self.gateway.read(0.0)
        local = {s.channel.fileno(): s for s in speakers if not isinstance(s.channel, Mailbox)}
        mailed = _with_mail(speakers)
        poll = select.poll()
        for descriptor in (self._control.fileno(), self.gateway.fileno(), *local):
            poll.register(descriptor, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(0.0 if mailed else timeout * 1000)]
        if self._control.fileno() in ready:
            self._pump(0.0)
        if self.gateway.fileno() in ready:
            self.gateway.read(0.0)
            mailed = _with_mail(speakers)
        return [*mailed, *(local[fd] for fd in ready if fd in local)]

    def end_of(self, worker: WorkerProcess, patience: float = 5.0) -> End:
        if isinstance(worker, RemoteBuild):
            raise ServerLostError("the gateway to Ray has ended")
        return super().end_of(worker, patience)

    def discard(self, worker: WorkerProcess) -> None:
        if isinstance(worker, RemoteBuild):
            worker.channel.close()
        else:
            super().discard(worker)

    def close(self) -> None:
        self.gateway.close()
        super().close()


def _with_mail(speakers: Sequence[S]) -> list[S]:
    return [s for s in speakers if isinstance(s.channel, Mailbox) and s.channel.mail]
