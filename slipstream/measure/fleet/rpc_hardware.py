"""What hardware an RPC server has, asked in a process of its own: TVM's client blocks and cannot be interrupted."""

from __future__ import annotations

import socket
import subprocess
import sys

from slipstream.measure.devices.rpc_tracker import DeviceError, Tracker
from slipstream.processes.channel import Channel
from slipstream.processes.child import child_environment

_SECONDS = 60.0
_MARK = "slipstream-hardware "


def class_of_server(host: str, port: int, key: str) -> str:
    """The hardware class of the next free server under `key`; `DeviceError` if it does not say, or none is free."""
    command = [sys.executable, "-m", __name__, host, str(port), key]
    who = f"the RPC device with the key {key!r}"
    try:
        done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"{who} did not answer for {_SECONDS:.0f} s: others may be using it") from None
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            if found := line.removeprefix(_MARK).strip():
                return found
            raise DeviceError(
                f"{who} is behind TVM's own server, which does not say what hardware it is: start "
                f"'python -m slipstream.measure.rpc_server --tracker {host}:{port} --key {key}' there"
            )
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    raise DeviceError(f"{who} could not be asked: {last}")


def main() -> None:
    """`python -m slipstream.measure.fleet.rpc_hardware HOST PORT KEY`, the other side of `class_of_server`."""
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    from slipstream.measure.devices.rpc_session import Session

    host, port, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    ours, theirs = socket.socketpair()
    with Tracker(host, port) as tracker, ours, theirs:
        session = Session(tracker.request(key, Channel(ours)), _SECONDS, Channel(ours))
        print(f"{_MARK}{session.hardware()}", flush=True)
        session.close()


if __name__ == "__main__":
    main()
