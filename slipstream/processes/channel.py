"""JSON messages over a socket between our processes. JSON, since a program may have overwritten the other end."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from typing import Any, Protocol

_HEADER = struct.Struct("!Q")
_LARGEST = 1 << 30


class ChannelClosedError(Exception):
    """The other end is closed, or sends what is no message."""


class Channel:
    """One end of a stream socket, sending and receiving whole messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self.sock.sendall(_HEADER.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """The next message, or `TimeoutError`. A message once begun has five seconds to arrive."""
        if not self.is_readable(timeout):
            raise TimeoutError
        deadline = time.monotonic() + 5.0
        (size,) = _HEADER.unpack(self._exactly(_HEADER.size, deadline))
        if size > _LARGEST:
            raise ChannelClosedError(f"a message of {size} bytes")
        try:
            message: dict[str, Any] = json.loads(self._exactly(size, deadline))
        except ValueError as error:
            raise ChannelClosedError(str(error)) from error
        return message

    def is_readable(self, timeout: float | None) -> bool:
        """Whether a message (or the end) arrives within `timeout` seconds."""
        poll = select.poll()  # `select.select` refuses a descriptor above 1023
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def close(self) -> None:
        self.sock.close()

    def _exactly(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size:
            left = deadline - time.monotonic()
            if left <= 0 or not self.is_readable(left):
                raise ChannelClosedError("half a message")
            try:
                data = self.sock.recv(min(size, 1 << 20))
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if not data:
                raise ChannelClosedError("end of stream")
            parts.append(data)
            size -= len(data)
        return b"".join(parts)


class Speaker(Protocol):
    """A process of ours that answers over a channel."""

    @property
    def channel(self) -> Channel: ...
