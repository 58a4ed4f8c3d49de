"""The worker process in which ONNX Runtime reads and runs untrusted models.

A damaged file can crash ONNX Runtime, so every job runs in a child forked from this small server, which has
imported everything and opened nothing. Models and tensors travel as files. Started by `slipstream.frontends.sandbox`,
never by hand.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from slipstream.errors import ModelError, SlipstreamError
from slipstream.frontends import onnx_clean, onnx_run, onnx_values
from slipstream.processes.channel import Channel, ChannelClosedError
from slipstream.processes.child import die_with_parent

JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": onnx_clean.prepare,
    "run": onnx_run.run_files,
    "run_values": onnx_values.run_values,
    "read_types": onnx_values.read_types,
}


def serve(owner: Channel) -> None:
    """Answer requests until the owner closes its end, also while a job runs."""
    with suppress(ChannelClosedError):
        while True:
            owner.send(_run_in_child(owner.receive(), owner))


def _run_in_child(request: dict[str, Any], owner: Channel) -> dict[str, Any]:
    """The job's answer, or how the child ended without one."""
    ours, theirs = map(Channel, socket.socketpair())
    server, child = os.getpid(), os.fork()
    if child == 0:
        die_with_parent(server)
        _do_job(request, theirs)
    theirs.close()
    ready = wait([ours.sock, owner.sock], request["seconds"])
    answer: dict[str, Any] | None = None
    if ours.sock in ready:
        with suppress(ChannelClosedError):
            answer = ours.receive()
    else:
        os.kill(child, signal.SIGKILL)
    ours.close()
    _, status = os.waitpid(child, 0)
    if answer is not None:
        return answer
    if owner.sock in ready and ours.sock not in ready:
        raise ChannelClosedError("the owner has ended")
    if not ready:
        return {"crash": f"took longer than {request['seconds']:.0f} s"}
    killed = os.WIFSIGNALED(status)
    return {"crash": signal.Signals(os.WTERMSIG(status)).name if killed else f"exit {os.WEXITSTATUS(status)}"}


def _do_job(request: dict[str, Any], answers: Channel) -> None:
    answer: dict[str, Any]
    try:
        answer = {"result": JOBS[request["job"]](**request["arguments"])}
    except SlipstreamError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    except MemoryError:
        answer = {"error": ModelError.__name__, "message": "not enough memory to read the model"}
    except BaseException:
        answer = {"crash": traceback.format_exc()}
    answers.send(answer)
    os._exit(0)


if __name__ == "__main__":
    serve(Channel(socket.socket(fileno=int(sys.argv[1]))))
