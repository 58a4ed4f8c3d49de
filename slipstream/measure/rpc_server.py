"""A TVM RPC server that outlives the programs it runs: `python -m slipstream.measure.rpc_server --key NAME`.

It is TVM's own server (same protocol, same tracker) with another supervision of sessions. The stock one leaves the
tracker when a program crashes, and stays busy until the session's time is up when a program hangs and its client has
ended. This one notices both, cleans up and registers again. It also offers functions that measuring uses
(`devices/rpc_functions.py`), starts in half the time, since it is one process and not two, and binds to loopback unless
another address is given.

It runs whatever code it is sent, with the rights of the user who started it.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import multiprocessing
import multiprocessing.process
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from slipstream.machine.tiles import allow_tiles
from slipstream.processes.child import die_with_parent
from slipstream.tvm_bridge import rpc
from slipstream.tvm_bridge.imports import import_tvm_without_torch

_GRACE_S = 1.0
_POLLRDHUP = 0x2000
_PORTS = range(9090, 9200)
_log = logging.getLogger("slipstream.rpc_server")


def serve(host: str, port: int | None, tracker: tuple[str, int], key: str, threads: int | None = None) -> None:
    """Register with `tracker` under `key` and serve one session at a time, until killed."""
    import_tvm_without_torch()
    allow_tiles()
    listener = _listen(host, port)
    _log.info("serving %r on %s:%d, tracker %s:%d", key, host, listener.getsockname()[1], *tracker)
    rpc.listen(listener, key, tracker, partial(_supervise_session, threads))


def _supervise_session(threads: int | None, sock: socket.socket, address: Any, timeout: float | None) -> None:
    """Run one session in a child until it ends, its client leaves or its time is up."""
    directory = rpc.temporary_directory()
    session = multiprocessing.get_context("fork").Process(target=_run_session, args=(sock, directory, threads))
    session.start()
    deadline = time.monotonic() + timeout if timeout else float("inf")
    poll = select.poll()
    poll.register(session.sentinel, select.POLLIN)
    poll.register(sock, _POLLRDHUP)
    try:
        while session.is_alive() and (left := deadline - time.monotonic()) > 0:
            events = dict(poll.poll(min(left, 1.0) * 1e3))
            if sock.fileno() in events:
                poll.unregister(sock)
                deadline = min(deadline, time.monotonic() + _GRACE_S)
                timeout = None
        if session.is_alive():
            if timeout:
                rpc.send_error(sock, f"RPCSessionTimeoutError: the {timeout:g} s are over")
            _log.info("ending the session of %s: its %s", address, "time is up" if timeout else "client has left")
        elif session.exitcode:
            _log.warning("a program of %s crashed its session (exit code %d)", address, session.exitcode)
    finally:
        if session.is_alive():
            _kill(session)
        sock.close()
        directory.remove()


def _run_session(sock: socket.socket, directory: Any, threads: int | None) -> None:
    from slipstream.machine.threads import use_threads
    from slipstream.measure.devices.rpc_functions import register

    os.setsid()
    die_with_parent()
    os.chdir(directory.path)
    use_threads(threads)
    register(threads)
    rpc.serve_session(sock, directory)
    # No destructors: the directory is the parent's to remove.
    os._exit(0)


def _kill(session: multiprocessing.process.BaseProcess) -> None:
    """End a session and whatever its programs started."""
    assert session.pid is not None
    try:
        os.killpg(session.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has not made its own group yet
        session.kill()
    session.join()


def _listen(host: str, port: int | None) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    for candidate in _PORTS if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(1)
        except OSError as error:
            listener.close()
            problem = error
        else:
            return listener
    sys.exit(f"cannot listen on {host}: {problem}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except OSError:
        return False


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m slipstream.measure.rpc_server", description=__doc__)
    parser.add_argument("--tracker", type=_address, default=("127.0.0.1", 9190), help="HOST:PORT (127.0.0.1:9190)")
    parser.add_argument("--key", required=True, help="the name under which clients ask for this kind of device")
    parser.add_argument("--host", default="127.0.0.1", help="the address to bind to (127.0.0.1)")
    parser.add_argument("--port", type=int, help=f"default: a free one from {_PORTS.start}")
    parser.add_argument("--threads", type=int, help="threads of compiled code (every core)")
    options = parser.parse_args(arguments)
    # Leave by an exception, so that the session in hand is cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if not _is_loopback(options.host):
        _log.warning("bound to %s: whoever reaches this port can run any code as this user", options.host)
    serve(options.host, options.port, options.tracker, options.key, options.threads)


if __name__ == "__main__":
    main()
