"""Running the compiler in a child process, so that a crash in native code is an error like any other."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from slipstream.errors import BuildError, SlipstreamError

Progress = Callable[[str], None]
_PR_SET_PDEATHSIG = 1


def run_guarded(work: Callable[[Progress], Any], progress: Progress) -> Any:
    """Do `work` in a forked child and return its (picklable) result; errors arrive as they were raised.

    Call it before TVM or any thread has been started. What native code prints is shown only if it crashes.
    """
    from multiprocessing import Pipe

    receiver, sender = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            receiver.close()
            _work_and_exit(work, sender, log.fileno())
        sender.close()
        answer = _listen(receiver, progress, child)
        _, status = os.waitpid(child, 0)
        if answer is None:
            log.seek(0)
            raise _crash(status, log.read().decode(errors="replace"))
    kind, value = answer
    if kind == "result":
        return value
    raise value


def _listen(receiver: Connection, progress: Progress, child: int) -> tuple[str, Any] | None:
    try:
        while True:
            kind, value = receiver.recv()
            if kind != "progress":
                return kind, value
            progress(value)
    except EOFError:
        return None
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _work_and_exit(work: Callable[[Progress], Any], sender: Connection, log: int) -> None:
    code = 0
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        result = work(lambda stage: sender.send(("progress", stage)))
        sender.send(("result", result))
    except SlipstreamError as error:
        error.remote_traceback = traceback.format_exc()  # type: ignore[attr-defined]
        sender.send(("error", error))
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        said = (str(error).strip().splitlines() or [""])[-1]
        wrapped = BuildError(
            f"{type(error).__name__}: {said} (a bug in Slipstream or TVM: run with --debug and report it)"
        )
        wrapped.remote_traceback = traceback.format_exc()  # type: ignore[attr-defined]
        sender.send(("error", wrapped))
    finally:
        sender.close()
        os._exit(code)


def _crash(status: int, log: str) -> BaseException:
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 130:
        return KeyboardInterrupt()
    how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
    error = BuildError(f"the compiler crashed ({how}); nothing was written. Run with --debug and report the model")
    error.remote_traceback = log  # type: ignore[attr-defined]
    return error
