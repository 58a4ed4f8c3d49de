"""Is a store whole? SQLite's own checks, and whether everything in it can be read."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from slipstream.store.database import check_path, connect_read_only
from slipstream.store.errors import StoreDamagedError, plain_errors
from slipstream.store.trials import unpack_samples
from slipstream.store.versions import require_current

_MOST = 20

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


def find_problems(path: Path) -> list[str]:
    """What is wrong with the store at `path`, a line each, at most twenty; a file that is no store is an error."""
    check_path(path)
    try:
        with plain_errors(path), closing(connect_read_only(path)) as connection:
            require_current(connection, path)
            return _integrity(connection) or _references(connection) or _values(connection)
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


def _values(connection: sqlite3.Connection) -> list[str]:
    return [f"row {row} of {table}: {what}" for table, row, what in islice(unreadable(connection), _MOST)]


def unreadable(connection: sqlite3.Connection) -> Iterator[tuple[str, int, str]]:
    """Values that SQLite returns and we cannot read: table, row, and what is wrong."""
    for (table, column), read in _READERS.items():
        for row, value in connection.execute(f"SELECT rowid, {column} FROM {table}"):
            try:
                read(value)
            except Exception as error:
                yield table, row, f"{column} cannot be read ({error})"
