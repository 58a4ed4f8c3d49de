"""One process per session or folder of one: a lock that the system takes back when its owner dies, however it dies."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from slipstream.store.errors import SessionBusyError, StoreReadOnlyError
from slipstream.store.location import without_password

# `is_owned` holds a free lock for microseconds; `own` tries again that long, so that asking keeps no owner out.
_TRY_SECONDS, _POLL_SECONDS = 0.2, 0.01


def own(store: Path, session: str) -> AbstractContextManager[None]:
    """Hold the session until the block ends; SessionBusyError names whoever holds it already."""
    return hold(_lock_file(store, session), f"session {session}")


@contextmanager
def hold(path: Path, what: str) -> Iterator[None]:
    """Lock the file at `path` until the block ends; SessionBusyError names whoever works on `what` already.

    Forked children do not inherit the lock: a worker that outlives its killed parent does not keep it.
    """
    lock = FileLock(
        path,
        timeout=_TRY_SECONDS,
        poll_interval=_POLL_SECONDS,
        mode=0o644,
        fallback_to_soft=False,
        on_acquired=_describe_owner,
    )
    try:
        lock.acquire()
    except Timeout:
        raise SessionBusyError(_who_owns(path, what)) from None
    except OSError as error:
        raise StoreReadOnlyError(
            f"cannot lock {what}: {path} cannot be locked ({error.strerror}); work on a copy"
        ) from error
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # a forked child that leaves by this way owns nothing
            path.unlink(missing_ok=True)
            lock.release()


def is_owned(store: Path, session: str) -> bool:
    """Whether a process works on the session; needs no permission to write."""
    try:
        descriptor = os.open(_lock_file(store, session), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not lock_descriptor(descriptor, blocking=False)
    finally:
        os.close(descriptor)


def _lock_file(store: Path, session: str) -> Path:
    return store.resolve().with_name(f"{store.name}.{session}.lock")


def _describe_owner(descriptor: int) -> None:
    command = shlex.join([Path(sys.argv[0]).name or "python", *map(without_password, sys.argv[1:])])
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "command": command}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _who_owns(path: Path, what: str) -> str:
    try:
        owner = json.loads(path.read_text())
        if (owner["pid"], owner["host"]) == (os.getpid(), socket.gethostname()):
            return f"this process works on {what} already: close it first"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["since"]))
        return (
            f"{what} is being worked on by process {owner['pid']} on {owner['host']} since {since} "
            f"({owner['command']}): wait for it, or stop it and try again"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return f"{what} is being worked on by another process, which is just starting or ending: try again"
