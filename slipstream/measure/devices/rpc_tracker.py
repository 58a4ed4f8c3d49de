"""A client of TVM's RPC tracker, without TVM: which servers there are, and a request for one.

The protocol is the one at the top of `tvm/rpc/tracker.py`: a magic number each way, then messages of a 32-bit
length and JSON.
"""

from __future__ import annotations

import importlib.util
import json
import select
import socket
import struct
from dataclasses import dataclass
from typing import Any

from slipstream.errors import SlipstreamError, TargetError
from slipstream.processes.channel import Channel

_MAGIC = struct.pack("<i", 0x2F271)
_SUCCESS, _REQUEST, _SUMMARY = 0, 4, 6
_PRIORITY = 1


class DeviceError(SlipstreamError):
    """The tracker cannot be reached, or measuring through it cannot start."""


@dataclass(frozen=True)
class Grant:
    """A server that waits for one connection with exactly this key."""

    host: str
    port: int
    match_key: str

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Tracker:
    """A connection to a tracker. `timeout` is for connecting and for each answer."""

    def __init__(self, host: str, port: int, timeout: float = 5.0) -> None:
        self._where = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise DeviceError(f"no RPC tracker at {self._where} ({error}): {_how_to_start(port)}") from error
        try:
            self._socket.sendall(_MAGIC)
            greeting = self._receive(len(_MAGIC))
        except OSError as error:
            self.close()
            raise DeviceError(f"{self._where} accepts connections but is no RPC tracker ({error})") from error
        if greeting != _MAGIC:
            self.close()
            raise DeviceError(f"{self._where} is not an RPC tracker")

    def servers(self, key: str) -> list[str]:
        """Addresses of the servers registered under `key`, busy ones too."""
        return [address for server_key, address in self._registered() if server_key == key]

    def keys(self) -> list[str]:
        """The keys that servers are registered under."""
        return sorted({key for key, _ in self._registered()})

    def _registered(self) -> list[tuple[str, str]]:
        self._send([_SUMMARY])
        info = self._answer()["server_info"]
        return [(server["key"].removeprefix("server:"), ":".join(map(str, server["addr"]))) for server in info]

    def request(self, key: str, owner: Channel) -> Grant:
        """Queue for a server with `key`, for as long as it takes; `EOFError` if `owner` closes meanwhile.

        A server granted to a client that has ended is unusable for some seconds.
        """
        self._send([_REQUEST, key, "", _PRIORITY])
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(owner, select.POLLIN)
        if owner.fileno() in dict(poll.poll()):
            raise EOFError("the owner of this request has ended")
        host, port, match_key = self._answer()
        return Grant(host, port, match_key)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, message: list[Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self._socket.sendall(struct.pack("<i", len(data)) + data)
        except OSError as error:
            raise DeviceError(f"the RPC tracker at {self._where} stopped listening: {error}") from error

    def _answer(self) -> Any:
        try:
            (size,) = struct.unpack("<i", self._receive(4))
            status, answer = json.loads(self._receive(size))
        except (OSError, ValueError, TypeError) as error:
            raise DeviceError(f"the RPC tracker at {self._where} stopped answering: {error}") from error
        if status != _SUCCESS:
            raise DeviceError(f"the RPC tracker at {self._where} refused: {status}")
        return answer

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise ConnectionResetError("connection closed")
            data += chunk
        return data


def parse_address(text: str, option: str = "--rpc ") -> tuple[str, int]:
    """`127.0.0.1:9190` → ("127.0.0.1", 9190). `option` is what the text was given for."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise TargetError(f"{option}{text!r} makes no sense: write it as HOST:PORT, such as 127.0.0.1:9190")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _how_to_start(port: int) -> str:
    command = f"start one with 'python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port {port}'"
    missing = [name for name in ("tornado", "cloudpickle") if importlib.util.find_spec(name) is None]
    return f"{command} after pip install {' '.join(missing)}" if missing else command
