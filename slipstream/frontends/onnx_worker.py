"""The worker process in which ONNX Runtime reads and runs untrusted models.

A damaged file can crash ONNX Runtime, so every job runs in a child forked from this small server, which has
imported everything and opened nothing. Requests and answers are one line of JSON each; models and tensors
travel as files. Started by `slipstream.frontends.sandbox`, never by hand.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import IO, Any

from slipstream.errors import ModelError, SlipstreamError
from slipstream.frontends import onnx_clean, onnx_run

JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": onnx_clean.prepare,
    "run": onnx_run.run_files,
}


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until the other end closes."""
    for line in requests:
        request = json.loads(line)
        answer = _run_in_child(request, requests)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _run_in_child(request: dict[str, Any], requests: IO[str]) -> dict[str, Any]:
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        _do_job(request, sender)
    os.close(sender)
    answer, deadline = b"", time.monotonic() + request["seconds"]
    while True:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([receiver, requests.fileno()], [], [], max(left, 0.0))
        if receiver in ready:
            chunk = os.read(receiver, 1 << 20)
            if not chunk:
                break
            answer += chunk
        elif ready or left <= 0:  # the parent has ended, or the time limit is over
            os.kill(child, signal.SIGKILL)
            if left > 0:
                sys.exit(0)
            break
    os.close(receiver)
    _, status = os.waitpid(child, 0)
    if answer:
        result: dict[str, Any] = json.loads(answer)
        return result
    if deadline <= time.monotonic():
        return {"crash": f"took longer than {request['seconds']:.0f} s"}
    killed = os.WIFSIGNALED(status)
    return {"crash": signal.Signals(os.WTERMSIG(status)).name if killed else f"exit {os.WEXITSTATUS(status)}"}


def _do_job(request: dict[str, Any], sender: int) -> None:
    answer: dict[str, Any]
    try:
        answer = {"result": JOBS[request["job"]](**request["arguments"])}
    except SlipstreamError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    except MemoryError:
        answer = {"error": ModelError.__name__, "message": "not enough memory to read the model"}
    except BaseException:
        answer = {"crash": traceback.format_exc()}
    with os.fdopen(sender, "w") as pipe:
        pipe.write(json.dumps(answer))
    os._exit(0)


def main() -> None:
    """Keep the real standard output for answers; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
