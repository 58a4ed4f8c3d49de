"""The SQLite file: how it is opened, and what makes a commit durable."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from slipstream.store import ownership
from slipstream.store.database import BUSY_SECONDS, Database, Values
from slipstream.store.errors import StoreError, StoreReadOnlyError, plain_errors
from slipstream.store.versions import create_if_empty, require_current

# The indices of a million trials are written all over; SQLite's 2 MB would have them read again and again.
_CACHE_KIB = 64 * 1024


class SqliteDatabase(Database):
    """Readers see the last commit and never wait (write-ahead log); one process writes at a time. A commit is
    synchronised with the disk before `transaction` returns: neither killing the process nor losing power takes it back.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        super().__init__(path)
        self.path = path
        self.connection = connection

    @classmethod
    def open(cls, path: Path, *, create: bool, read_only: bool) -> SqliteDatabase:
        """Open a store for use, creating it where that is allowed."""
        check_path(path, create=create and not read_only)
        with plain_errors(path):
            connection = connect_read_only(path) if read_only else _connect(path, "mode=rwc")
            try:
                if not read_only:
                    _prepare_to_write(connection)
                    create_if_empty(connection)
                require_current(connection, path)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    def run(self, sql: str, values: Values = ()) -> Any:
        return self.connection.execute(sql, values)

    def insert(self, sql: str, values: Values = ()) -> int:
        with self.errors():
            return self.run(sql, values).lastrowid or 0

    def execute_many(self, sql: str, rows: Iterable[Values]) -> None:
        with self.errors():
            self.connection.executemany(sql, rows)

    def errors(self) -> AbstractContextManager[None]:
        return plain_errors(self.path)

    def begin(self, alone: bool) -> None:
        self.run("BEGIN IMMEDIATE")

    def roll_back(self) -> None:
        if self.connection.in_transaction:
            self.run("ROLLBACK")

    def lock_catalogue(self) -> None:
        pass  # a transaction that writes is alone

    def reclaim(self) -> None:
        self.execute("VACUUM")
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def bytes(self) -> int:
        """The size of the file's pages."""
        return int(self.rows("PRAGMA page_count")[0][0]) * int(self.rows("PRAGMA page_size")[0][0])

    def is_same(self, other: Database) -> bool:
        return isinstance(other, SqliteDatabase) and self.path.samefile(other.path)

    def own(self, session: str) -> AbstractContextManager[None]:
        return ownership.own(self.path, session)

    def is_owned(self, session: str) -> bool:
        return ownership.is_owned(self.path, session)

    def close(self) -> None:
        with self.errors():
            self.connection.close()


def connect_read_only(path: Path, *, damaged: bool = False) -> sqlite3.Connection:
    """Open without ever writing, also on a read-only file system or in another user's directory.

    A `damaged` file is opened although its pages do not add up, to read those that are left.
    """
    try:
        return _connect(path, "mode=ro", damaged)
    except sqlite3.OperationalError as error:
        log = path.with_name(f"{path.name}-wal")
        kept_out = error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
        if not kept_out or (log.exists() and log.stat().st_size):
            raise
        # SQLite cannot make its shared-memory file here. Without a log there is no writer, and none is needed.
        return _connect(path, "mode=ro&immutable=1", damaged)


def _prepare_to_write(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


def _connect(path: Path, how: str, damaged: bool = False) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{how}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        if damaged:
            # The one setting under which SQLite reads a file that is shorter than its header says.
            connection.execute("PRAGMA writable_schema = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def check_path(path: Path, *, create: bool = False) -> None:
    """Refuse what cannot be a store, in words better than SQLite's."""
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a directory: give the store's file, for example {path / 'store.db'}")
        if not path.exists() and not create:
            raise StoreError(f"there is no store at {path}: give the store.db of a session, or tune a model first")
        if not path.absolute().parent.is_dir():
            raise StoreError(f"cannot create {path}: make its directory {path.absolute().parent} first")
    except PermissionError as error:
        raise StoreReadOnlyError(f"{path} cannot be reached: you lack permission for its directory") from error
