"""TVM's RPC server with another supervision of its sessions: all that reaches into TVM's private functions."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

# Serves one session on a connected socket; the second argument is the client's address, the third its time limit.
Supervise = Callable[[socket.socket, Any, float | None], None]


def listen(listener: socket.socket, key: str, tracker: tuple[str, int], supervise: Supervise) -> None:
    """Register with `tracker` under `key` and have `supervise` serve one session after another, until killed."""
    from tvm.rpc import server

    def serve(sock: socket.socket, address: Any, options: dict[str, float], load_library: Any) -> None:
        supervise(sock, address, options.get("timeout"))

    server._serving = serve
    server._listen_loop(listener, listener.getsockname()[1], key, tracker, None, None)


def serve_session(sock: socket.socket, directory: Any) -> None:
    """Answer the client's requests until it leaves; `directory` is a temporary one of TVM's for what it uploads."""
    from tvm.rpc import server

    server._serve_loop(sock, None, directory)


def send_error(sock: socket.socket, message: str) -> None:
    """Answer the request under way with an error."""
    from tvm.rpc import _ffi_api

    _ffi_api.ReturnException(sock.fileno(), message)


def temporary_directory() -> Any:
    """A directory of the kind that `serve_session` takes: it has a `path`, and is removed by `remove`."""
    from tvm.support import utils

    return utils.tempdir()
