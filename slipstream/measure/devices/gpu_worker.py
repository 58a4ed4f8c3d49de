"""What the process that has a GPU does: run one program after another for its owner, until that hangs up.

Started by `gpu_process.py`, never by hand.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from typing import Any

from slipstream.measure.types import FailureKind
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
    from slipstream.measure.devices.gpu_launcher import Launcher

    load_runtime()
    launcher = Launcher()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    with contextlib.suppress(ChannelClosedError):
        while True:
            channel.send(_answer(launcher, channel.receive()))


def _answer(launcher: Any, request: dict[str, Any]) -> dict[str, Any]:
    jobs = {"launch": launcher.launch, "launch_again": launcher.launch_again}
    (job, options), *_ = request.items()
    try:
        answer: dict[str, Any] = jobs[job](**options)
        return answer
    except Exception as error:  # TVM raises whatever it likes; any of it is this program's failure
        text = str(error).strip() or type(error).__name__
        kind = FailureKind.OUT_OF_MEMORY if "out of memory" in text else FailureKind.RUN_ERROR
        return {"failure": kind.value, "message": text.splitlines()[-1]}


if __name__ == "__main__":
    main()
