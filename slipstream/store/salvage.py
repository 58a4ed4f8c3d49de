"""Saving what can be read of a damaged store: row by row, around unreadable pages."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.store.check import unreadable
from slipstream.store.errors import StoreError, plain_errors
from slipstream.store.schema import TABLES
from slipstream.store.sqlite import SqliteDatabase, check_path, connect_read_only

_CHUNK = 1024
# Where the end of a table is unknown, so many failures in a row are taken for it.
_PATIENCE = 5_000


@dataclass(frozen=True)
class Salvaged:
    """Rows saved by table, and rows left out: unreadable ones, and those that refer to an unreadable row."""

    rows: dict[str, int]
    dropped: int


def salvage(damaged: Path, output: Path) -> Salvaged:
    """Write every readable row of `damaged` to a new store at `output`. The damaged file is only read."""
    check_path(damaged)
    if output.exists():
        raise StoreError(f"{output} exists: choose a new file to salvage into")
    with plain_errors(damaged), closing(connect_read_only(damaged, damaged=True)) as source:
        database = SqliteDatabase.open(output, create=True, read_only=False)
        try:
            return _copy(source, damaged, database)
        finally:
            database.close()


def _copy(source: sqlite3.Connection, damaged: Path, database: SqliteDatabase) -> Salvaged:
    # References are put in order afterwards: a program may be readable while its operator is not.
    database.execute("PRAGMA foreign_keys = OFF")
    largest = damaged.stat().st_size
    saved: dict[str, int] = {}
    with database.transaction():
        for table in TABLES:
            columns = [row[1] for row in database.rows(f"PRAGMA table_info({table})")]
            places = ", ".join("?" * (len(columns) + 1))
            insert = f"INSERT OR IGNORE INTO {table} (rowid, {', '.join(columns)}) VALUES ({places})"
            saved[table] = sum(database.change(insert, row) for row in _rows(source, table, columns, largest))
        dropped = _drop_garbled(database) + _drop_orphans(database)
    return Salvaged(saved, dropped)


def _rows(source: sqlite3.Connection, table: str, columns: list[str], largest: int) -> Iterator[tuple[Any, ...]]:
    """All rows that can be read: a range of row numbers that fails is halved until only unreadable rows fail."""
    # NOT INDEXED: a damaged index must not hide a sound table.
    sql = f"SELECT rowid, {', '.join(columns)} FROM {table} NOT INDEXED WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
    last = _last_row(source, table)
    patience = _PATIENCE if last is None else math.inf
    start, failures = 1, 0
    while start <= (last or largest) and failures < patience:
        ranges = [(start, start + _CHUNK - 1)]
        start += _CHUNK
        while ranges and failures < patience:
            low, high = ranges.pop()
            try:
                rows = source.execute(sql, (low, high)).fetchall()
            except sqlite3.DatabaseError:
                failures += 1
                if low < high:
                    middle = (low + high) // 2
                    ranges += [(middle + 1, high), (low, middle)]
                continue
            failures = 0 if rows else failures
            yield from rows


def _last_row(source: sqlite3.Connection, table: str) -> int | None:
    try:
        row = source.execute(f"SELECT max(rowid) FROM {table}").fetchone()
        return int(row[0] or 1)
    except sqlite3.DatabaseError:
        return None


def _drop_garbled(database: SqliteDatabase) -> int:
    garbled = {(table, row) for table, row, _ in unreadable(database.connection.execute)}
    return sum(database.change(f"DELETE FROM {table} WHERE rowid = ?", (row,)) for table, row in garbled)


def _drop_orphans(database: SqliteDatabase) -> int:
    dropped = 0
    while orphans := database.rows("PRAGMA foreign_key_check"):
        for table, row, _, _ in orphans:
            dropped += database.change(f"DELETE FROM {table} WHERE rowid = ?", (row,))
    return dropped
