"""Is a store whole? SQLite's own checks, and whether everything in it can be read. PostgreSQL checks itself."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from slipstream.store.errors import StoreDamagedError, plain_errors
from slipstream.store.location import PostgresUrl, StoreLocation
from slipstream.store.opening import open_database
from slipstream.store.sqlite import check_path, connect_read_only
from slipstream.store.trials import unpack_samples
from slipstream.store.versions import require_current

_MOST = 20

Execute = Callable[[str], Iterable[Any]]  # a statement -> its rows

# (table, column) -> how its values are read.
_READERS: dict[tuple[str, str], Callable[[Any], object]] = {
    ("hardware", "descriptor"): json.loads,
    ("operator", "kinds"): json.loads,
    ("operator", "shapes"): json.loads,
    ("operator", "module"): zlib.decompress,
    ("sketch", "text"): lambda text: text is None or zlib.decompress(text),
    ("session", "options"): json.loads,
    ("session", "result"): json.loads,
    ("slot", "note"): json.loads,
    ("slot", "stats"): json.loads,
    ("trial", "samples"): unpack_samples,
}


def find_problems(location: StoreLocation) -> list[str]:
    """What is wrong with a store, a line each, at most twenty; what is no store is an error."""
    return _problems_of_url(location) if isinstance(location, PostgresUrl) else _problems_of_file(location)


def _problems_of_url(url: PostgresUrl) -> list[str]:
    database = open_database(url, create=False, read_only=True)
    try:
        # The server refuses rows that refer to missing ones; whether it keeps a commit is its administrator's choice.
        if database.rows("SELECT current_setting('fsync')") == [("off",)]:
            return ["the server has fsync off: trials may be lost or damaged when its machine crashes"]
        return _values(database.stream)
    finally:
        database.close()


def _problems_of_file(path: Path) -> list[str]:
    check_path(path)
    try:
        with plain_errors(path), closing(connect_read_only(path)) as connection:
            require_current(connection, path)
            return _integrity(connection) or _references(connection) or _values(connection.execute)
    except StoreDamagedError as error:
        if isinstance(error.__cause__, sqlite3.Error) and error.__cause__.sqlite_errorname != "SQLITE_NOTADB":
            return [str(error.__cause__)]
        raise


def _integrity(connection: sqlite3.Connection) -> list[str]:
    found = [row[0] for row in connection.execute(f"PRAGMA integrity_check({_MOST})")]
    return [] if found == ["ok"] else [line for text in found for line in text.splitlines()][:_MOST]


def _references(connection: sqlite3.Connection) -> list[str]:
    missing = connection.execute("PRAGMA foreign_key_check").fetchmany(_MOST)
    return [f"row {row} of {table} refers to a row of {parent} that is missing" for table, row, parent, _ in missing]


def _values(execute: Execute) -> list[str]:
    return [f"row {row} of {table}: {what}" for table, row, what in islice(unreadable(execute), _MOST)]


def unreadable(execute: Execute) -> Iterator[tuple[str, int, str]]:
    """Values that the database returns and we cannot read: table, row, and what is wrong."""
    for (table, column), read in _READERS.items():
        row_number = "rowid" if table == "slot" else "id"
        for row, value in execute(f"SELECT {row_number}, {column} FROM {table}"):
            try:
                read(value)
            except Exception as error:
                yield table, row, f"{column} cannot be read ({error})"
