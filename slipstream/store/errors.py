"""What can go wrong with a store, and the plain sentence for each thing SQLite may say; `postgres_errors.py` has the
sentences for PostgreSQL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.errors import SlipstreamError


class StoreError(SlipstreamError):
    """A store was used wrongly, or could not do what it was asked. What it held before is untouched."""


class StoreFullError(StoreError):
    """The disk, a quota or a size limit left no room for what was to be stored."""


class StoreReadOnlyError(StoreError):
    """The store may be read but not written."""


class StoreDamagedError(StoreError):
    """The file is not a store, or part of it cannot be read."""


class StoreVersionError(StoreError):
    """The store was written by another version of Slipstream."""


class StoreLockedError(StoreError):
    """Another process kept the store to itself for too long."""


class StoreUnreachableError(StoreError):
    """The database server cannot be reached, or the connection to it was lost. What it held before is untouched."""


class SessionBusyError(StoreError):
    """Another process works on the session."""


_IO_ERRORS = "SQLITE_IOERR"


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the store at `path` into one line each that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(error, path) from error


def _translate(error: sqlite3.Error, path: Path) -> Exception:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        return StoreFullError(f"no room left for {path}: free some disk space; everything stored before is kept")
    if name.startswith(("SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE")):
        return StoreFullError(
            f"the system refused to write {path}: check free space, quota and file-size limit (ulimit -f); "
            "everything stored before is kept"
        )
    if name.startswith(_IO_ERRORS):
        return StoreError(f"the system could not read or write {path} ({error}): check the disk, then try again")
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM")):
        return StoreReadOnlyError(
            f"{path} cannot be written: give yourself permission to write it and its directory, or work on a copy"
        )
    if name == "SQLITE_NOTADB":
        return StoreDamagedError(
            f"{path} is not a Slipstream store, or its beginning is damaged: choose another file or restore a copy"
        )
    if name.startswith("SQLITE_CORRUPT"):
        return StoreDamagedError(
            f"{path} is damaged: 'slipstream store check {path} --salvage NEW' saves what can be read"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreLockedError(f"another process keeps {path} locked: wait for it to finish, then try again")
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreError(f"cannot open {path}: check that it and its directory exist and that you may write them")
    return error
