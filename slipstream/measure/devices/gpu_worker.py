"""What the process that has a GPU does: run one program after another until its owner closes the channel.

Started by `gpu_process.py`, never by hand.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys

from slipstream.processes.channel import Channel, ChannelClosedError
from slipstream.processes.child import die_with_parent


def main() -> None:
    """`python -m slipstream.measure.devices.gpu_worker FD OWNER`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not die_with_parent(int(sys.argv[2])):
        return
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    from slipstream.machine.cuda_libraries import load_runtime
    from slipstream.measure.devices.graph_launcher import GraphLauncher

    load_runtime()
    import tvm

    launcher = GraphLauncher(tvm.cuda(0))
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    with contextlib.suppress(ChannelClosedError):
        while True:
            channel.send(launcher.answer(channel.receive()))


if __name__ == "__main__":
    main()
