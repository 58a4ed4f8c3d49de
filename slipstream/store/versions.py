"""Giving a new file the schema, and refusing one of another version."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from slipstream.store.errors import StoreDamagedError, StoreVersionError
from slipstream.store.location import StoreLocation
from slipstream.store.schema import APPLICATION_ID, SCHEMA, VERSION

_ATTEMPTS, _PAUSE_SECONDS = 500, 0.02


def create_if_empty(connection: sqlite3.Connection) -> None:
    """Give an empty file the schema."""
    if not _is_empty(connection):
        return
    _use_log(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(connection):  # or another process was faster
            _run(connection, SCHEMA)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def require_current(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is no store, and a store of another version."""
    if _is_empty(connection):
        raise StoreDamagedError(f"{path} is empty: give the store.db of a session")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StoreDamagedError(f"{path} is an SQLite file of something else, not a Slipstream store: choose another")
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    require_version(found, path)


def require_version(found: int, location: StoreLocation) -> None:
    if found != VERSION:
        remedy = "upgrade Slipstream" if found > VERSION else "tune afresh"
        raise StoreVersionError(f"{location} has the store version {found}, this Slipstream reads {VERSION}: {remedy}")


def _use_log(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. SQLite does not wait for a rival that does the same at this moment; we do."""
    for attempt in range(_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_SECONDS)


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Run statements inside the open transaction, which `executescript` would commit."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
