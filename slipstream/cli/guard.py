"""Running the compiler in a child process, so that a crash in native code becomes an ordinary error."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from slipstream.errors import BuildError, SlipstreamError, cannot_access
from slipstream.processes.child import die_with_parent

Progress = Callable[[str], None]


def run_guarded(work: Callable[[Progress], Any], progress: Progress) -> Any:
    """Do `work` in a forked child and return its (picklable) result; errors arrive as they were raised.

    Call it before TVM or any thread has been started. What native code prints is shown only if it crashes.
    """
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    with tempfile.TemporaryFile() as log:
        child = fork.Process(target=_work, args=(work, sender, log.fileno()), daemon=True)
        child.start()
        sender.close()
        try:
            answer = _read_answer(receiver, progress)
        except KeyboardInterrupt:
            child.terminate()
            child.join()
            raise
        child.join()
        if answer is None:
            log.seek(0)
            raise _crash(child.exitcode or 0, log.read().decode(errors="replace"))
    kind, value = answer
    if kind == "result":
        return value
    raise value


def _read_answer(receiver: Connection, progress: Progress) -> tuple[str, Any] | None:
    """The child's answer, or None if it ended without one."""
    while True:
        try:
            kind, value = receiver.recv()
        except EOFError:
            return None
        if kind != "progress":
            return kind, value
        progress(value)


def _work(work: Callable[[Progress], Any], sender: Connection, log: int) -> None:
    die_with_parent(number=signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that temporary files are cleaned up
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which then stops this process
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        sender.send(("result", work(lambda stage: sender.send(("progress", stage)))))
    except SlipstreamError as error:
        sender.send(("error", _with_traceback(error)))
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            sender.send(("error", _with_traceback(SlipstreamError(cannot_access(error)))))
            return
        message = (str(error).strip().splitlines() or [""])[-1]
        bug = BuildError(
            f"{type(error).__name__}: {message} (a bug in Slipstream or TVM: run with --debug and report it)"
        )
        sender.send(("error", _with_traceback(bug)))


def _with_traceback(error: SlipstreamError) -> SlipstreamError:
    error.remote_traceback = traceback.format_exc()  # type: ignore[attr-defined]  # shown by --debug
    return error


def _crash(exit_code: int, log: str) -> BuildError:
    how = signal.Signals(-exit_code).name if exit_code < 0 else f"exit {exit_code}"
    error = BuildError(f"the compiler crashed ({how}); nothing was written. Run with --debug and report the model")
    error.remote_traceback = log  # type: ignore[attr-defined]
    return error
