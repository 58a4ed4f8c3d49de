"""One process per session: a lock that the operating system takes back when its owner dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.store.errors import SessionBusyError, StoreError, StoreReadOnlyError

# A record lock (fcntl) is not inherited by forked workers, so that one that outlives its killed parent does not
# keep the session. The price: it does not tell two owners in one process apart, and this does.
_owned_here: set[Path] = set()

# Linux's struct flock: type, whence, start, length, process id.
_FLOCK = "hhqqi0q"


@contextmanager
def own(store: Path, session: str) -> Iterator[None]:
    """Hold the session until the block ends; SessionBusyError names whoever holds it already."""
    path = _lock_file(store, session)
    if path in _owned_here:
        raise SessionBusyError(f"this process works on session {session} already: close it first")
    descriptor, owner = _lock(path, session), os.getpid()
    _owned_here.add(path)
    try:
        yield
    finally:
        # A forked child that leaves by this way owns nothing.
        if os.getpid() == owner:
            _owned_here.discard(path)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            os.close(descriptor)


def is_owned(store: Path, session: str) -> bool:
    """Whether a process works on the session. Only asks: an owner who begins meanwhile is never kept out."""
    path = _lock_file(store, session)
    if path in _owned_here:
        return True  # and opening and closing the file would give our own lock up
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(descriptor)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _lock_file(store: Path, session: str) -> Path:
    return store.resolve().with_name(f"{store.name}.{session}.lock")


def _lock(path: Path, session: str) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreReadOnlyError(
                f"cannot lock session {session}: {path} cannot be written ({error.strerror}); work on a copy"
            ) from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still_there(path, descriptor):
                _describe_owner(descriptor)
                return descriptor
        except (BlockingIOError, PermissionError):
            raise SessionBusyError(f"session {session} is being worked on by {_owner(descriptor)}") from None
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"cannot lock session {session} with {path}: {error.strerror}") from error
        os.close(descriptor)


def _still_there(path: Path, descriptor: int) -> bool:
    """False if the previous owner removed the file between our opening and locking it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _describe_owner(descriptor: int) -> None:
    command = shlex.join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "command": command}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _owner(descriptor: int) -> str:
    """Who holds the lock, in words; the file is read just before it is closed."""
    try:
        owner = json.loads(os.pread(descriptor, 65536, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["since"]))
        return (
            f"process {owner['pid']} on {owner['host']} since {since} ({owner['command']}): "
            "wait for it, or stop it and try again"
        )
    except (ValueError, KeyError, TypeError):
        return "another process, which is just starting: try again"
    finally:
        os.close(descriptor)
