"""Opening a store wherever it is, and asking for the little that needs no open one."""

from __future__ import annotations

from pathlib import Path

from slipstream.errors import MissingDependencyError
from slipstream.store import ownership
from slipstream.store.database import Database
from slipstream.store.errors import StoreError
from slipstream.store.location import PostgresUrl, StoreLocation
from slipstream.store.sqlite import SqliteDatabase, check_path


def open_database(location: StoreLocation, *, create: bool, read_only: bool) -> Database:
    """Open a store's database; `create` makes a new store where there is none."""
    if isinstance(location, Path):
        return SqliteDatabase.open(location, create=create, read_only=read_only)
    require_driver(location)
    from slipstream.store.postgres import PostgresDatabase

    return PostgresDatabase.open(location, create=create, read_only=read_only)


def check_location(location: StoreLocation) -> None:
    """Refuse, before any work is done, what a session cannot use as its store."""
    if isinstance(location, Path):
        check_path(location, create=True)
    else:
        open_database(location, create=True, read_only=False).close()


def require_driver(url: PostgresUrl) -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"{url} cannot be opened without psycopg ({error}): pip install 'slipstream[postgres]'"
        ) from error


def revision(location: StoreLocation, session: str) -> str:
    """Changes with every commit that concerns a session, and with its owner; "0" if that cannot be seen."""
    if isinstance(location, Path):
        files = (location, location.with_name(f"{location.name}-wal"))
        return "-".join([*map(file_stamp, files), str(int(ownership.is_owned(location, session)))])
    try:
        database = open_database(location, create=False, read_only=True)
        try:
            row = database.row(_REVISION, (session,))
            return "-".join(map(str, [*(row or ()), int(database.is_owned(session))]))
        finally:
            database.close()
    except StoreError:
        return "0"


# `xmin` is PostgreSQL's number of the transaction that wrote the row last.
_REVISION = """
SELECT xmin, (SELECT max(id) FROM trial WHERE session = session.id),
    (SELECT count(*) FROM slot WHERE session = session.id),
    (SELECT count(*) FROM slot WHERE session = session.id AND finished = 1),
    (SELECT max(xmin::text) FROM state WHERE session = session.id)
FROM session WHERE name = ?
"""


def file_stamp(path: Path) -> str:
    """Changes when the file is written; "0" where there is none."""
    try:
        status = path.stat()
    except OSError:
        return "0"
    return f"{status.st_mtime_ns:x}.{status.st_size:x}"
