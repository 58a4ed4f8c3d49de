"""Creating a store and bringing an older one up to date: in one transaction, with a copy of the old file kept."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from slipstream.store.errors import StoreDamagedError, StoreVersionError
from slipstream.store.schema import APPLICATION_ID, SCHEMA, VERSION

# Version -> the statements that lead from it to the next one.
MIGRATIONS: Mapping[int, str] = {}

_ATTEMPTS, _PAUSE_SECONDS = 500, 0.02


def upgrade(
    connection: sqlite3.Connection,
    path: Path,
    version: int = VERSION,
    migrations: Mapping[int, str] = MIGRATIONS,
) -> Path | None:
    """Give an empty file the schema, and an older store what it lacks; where the copy of the old one is."""
    if _is_empty(connection):
        _create(connection)
    found = _checked_version(connection, path, version)
    if found == version:
        return None
    if missing := [step for step in range(found, version) if step not in migrations]:
        raise StoreVersionError(f"{path} has the old version {missing[0]}, which cannot be upgraded: tune afresh")
    backup = _back_up(connection, path, found)
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been faster.
        for step in range(_checked_version(connection, path, version), version):
            _run(connection, migrations[step])
            connection.execute(f"PRAGMA user_version = {step + 1}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return backup


def require_current(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse to read a store of another version."""
    if _is_empty(connection):
        raise StoreDamagedError(f"{path} is empty: give the store.db of a session")
    if _checked_version(connection, path, VERSION) < VERSION:
        raise StoreVersionError(
            f"{path} was written by an older version: 'slipstream store check {path} --upgrade' brings it up to date"
        )


def _create(connection: sqlite3.Connection) -> None:
    _use_log(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(connection):
            _run(connection, SCHEMA)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


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


def _checked_version(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StoreDamagedError(f"{path} is an SQLite file of something else, not a Slipstream store: choose another")
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > newest:
        raise StoreVersionError(
            f"{path} was written by a newer Slipstream (store version {found}, this one reads {newest}): upgrade it"
        )
    return found


def _back_up(connection: sqlite3.Connection, path: Path, version: int) -> Path:
    backup = path.with_name(f"{path.name}.version-{version}")
    partial = backup.with_name(f"{backup.name}.partial-{os.getpid()}")
    try:
        with contextlib.closing(sqlite3.connect(partial)) as copy:
            connection.backup(copy)
        partial.replace(backup)
    finally:
        partial.unlink(missing_ok=True)
    return backup
