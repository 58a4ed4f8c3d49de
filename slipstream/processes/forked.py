"""A function called in a forked copy of this process: it finds everything in place, and a crash ends the copy alone."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from slipstream.errors import SlipstreamError
from slipstream.processes.child import die_with_parent

T = TypeVar("T")
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_at_work: set[int] = set()


def copies_at_work() -> frozenset[int]:
    """The process ids of the copies of this process that have not been asked for their result yet."""
    return frozenset(_at_work)


class ForkedCrashError(SlipstreamError):
    """A forked copy ended without an answer; the message says how."""


class Forked(Generic[T]):
    """`work()` in a copy of this process. Its result must be picklable; what it changes in memory stays in the copy.

    The copy ignores the signals that ask for an orderly end, which are this process's business, and ends with it.
    It has none of its files open, so that no lock outlives this process. Modules that `work` imports are imported here
    too when the result is read: the next copy has them.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        parent = os.getpid()
        self._answer = os.memfd_create("slipstream-answer", os.MFD_CLOEXEC)
        self._ended, writing = os.pipe()
        gc.freeze()  # a collection in the copy would touch, and thereby duplicate, every page
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the copy uses no thread of this process
                self._pid = os.fork()
            if self._pid == 0:
                _call(work, self._answer, writing, parent)
            _at_work.add(self._pid)
        finally:
            gc.unfreeze()
            os.close(writing)

    def fileno(self) -> int:
        """Readable once the copy has ended."""
        return self._ended

    def result(self) -> T:
        """What `work` returned, once it has; raises what it raised, or `ForkedCrashError`."""
        status = self._reap()
        try:
            if status != 0:
                raise ForkedCrashError(_ending(status))
            with os.fdopen(os.dup(self._answer), "rb") as file:
                file.seek(0)
                kind, value, imported = pickle.load(file)
        finally:
            os.close(self._answer)
            os.close(self._ended)
        for name in imported:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        if kind == "raised":
            raise value
        return value  # type: ignore[no-any-return]

    def cancel(self) -> None:
        """End the copy without asking for its result."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._reap()
        os.close(self._answer)
        os.close(self._ended)

    def _reap(self) -> int:
        _, status = os.waitpid(self._pid, 0)
        _at_work.discard(self._pid)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)


def side_by_side(works: Sequence[Callable[[], T]]) -> list[T]:
    """What each of `works` returns, each called in a copy of this process; raises what one of them raises."""
    copies = [Forked(work) for work in works]
    try:
        return [copies.pop(0).result() for _ in works]
    finally:
        for copy in copies:
            copy.cancel()


def _call(work: Callable[[], Any], answer: int, ended: int, parent: int) -> NoReturn:
    """The copy's whole life."""
    status = 1
    try:
        gc.disable()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        if die_with_parent(parent):
            _close_all_but({0, 1, 2, answer, ended})
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")  # where memory runs out, this process goes first
            before = set(sys.modules)
            message = _outcome(work)
            imported = sorted(name for name in set(sys.modules) - before if sys.modules[name] is not None)
            with os.fdopen(answer, "wb") as file:
                file.write(_pickled(*message, imported))
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _outcome(work: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "returned", work()
    except Exception as error:
        error.add_note("in a forked copy of the session:\n" + "".join(traceback.format_tb(error.__traceback__)))
        return "raised", error


def _pickled(kind: str, value: Any, imported: list[str]) -> bytes:
    try:
        data = pickle.dumps((kind, value, imported), pickle.HIGHEST_PROTOCOL)
        if kind == "raised":
            pickle.loads(data)  # an exception with arguments of its own may not come back
        return data
    except Exception as error:
        if kind != "raised":
            raise
        said = "".join(traceback.format_exception(value))
        return pickle.dumps((kind, RuntimeError(f"{said}(not picklable: {error})"), imported))


def _close_all_but(wanted: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _ending(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
        return f"killed by signal {-status}"
    return f"ended with exit status {status}"
