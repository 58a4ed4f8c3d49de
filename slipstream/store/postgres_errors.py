"""The plain sentence for each thing PostgreSQL or the way to it may say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from slipstream.store.errors import (
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from slipstream.store.location import PostgresUrl

# SQLSTATE, or how it begins, of a server that ends or starts, and of a connection that ended.
_GONE = ("08", "57P")
_MISSING_PASSWORD = "set PGPASSWORD, or write a line HOST:PORT:DATABASE:USER:PASSWORD into ~/.pgpass (mode 600)"


@contextmanager
def plain_errors(url: PostgresUrl) -> Iterator[None]:
    """Turn the driver's errors about an open store into one line each that says what to do."""
    try:
        yield
    except psycopg.Error as error:
        raise _translate(error, url) from error


def is_lost(error: psycopg.Error, connection: psycopg.Connection[Any]) -> bool:
    """Whether an error means that the connection has ended."""
    return connection.closed or _is_end(error)


def _is_end(error: psycopg.Error) -> bool:
    return (error.sqlstate or "").startswith(_GONE) or error.diag.severity_nonlocalized in ("FATAL", "PANIC")


def lost(url: PostgresUrl, why: object) -> StoreUnreachableError:
    return StoreUnreachableError(
        f"the connection to {url} was lost ({one_line(why)}): everything stored before is kept; "
        "see that the server can be reached again"
    )


def _translate(error: psycopg.Error, url: PostgresUrl) -> Exception:
    state, said = error.sqlstate or "", one_line(error)
    if _is_end(error) or (not state and isinstance(error, psycopg.OperationalError)):
        return lost(url, error)
    if state == "42501":
        return StoreReadOnlyError(
            f"you lack a right on {url} ({said}): ask its owner for it, docs/store.md lists those needed"
        )
    if state == "25006":
        return StoreReadOnlyError(f"{url} cannot be written ({said}): open a database that can, not a standby")
    if state in ("53100", "53200"):
        return StoreFullError(
            f"no room left for {url} ({said}): free some on the server; everything stored before is kept"
        )
    if state in ("55P03", "40P01", "40001"):
        return StoreLockedError(f"another process keeps {url} locked ({said}): wait for it to finish, then try again")
    if state in ("23503", "23505"):
        return StoreLockedError(f"another process merged into {url} or pruned it meanwhile ({said}): try again")
    if state.startswith("XX"):
        return StoreDamagedError(f"{url} is damaged ({said}): restore the server's backup")
    if state in ("42P01", "42703"):
        return StoreDamagedError(f"a table of {url} is missing or changed ({said}): restore the server's backup")
    if state.startswith(("53", "57")):
        return StoreError(f"the server of {url} gave up ({said}): try again when it has less to do")
    return error


def cannot_connect(error: psycopg.Error, url: PostgresUrl) -> StoreError:
    """What to say when no connection could be made. The server gives no code then, only text, usually in English."""
    said = " ".join(str(error).split())
    user = re.search(r'(?:user|role) "([^"]*)"', said)
    if error.pgconn is not None and error.pgconn.needs_password:
        return StoreError(f"the server of {url} asks for a password: {_MISSING_PASSWORD}")
    if "authentication failed" in said:
        name = f" of {user[1]}" if user else ""
        return StoreError(f"the server of {url} refused the password{name}: {_MISSING_PASSWORD}")
    if found := re.search(r'database "([^"]*)" does not exist', said):
        return StoreError(f"there is no database {found[1]} at {url}: make it, for example with 'createdb {found[1]}'")
    if found := re.search(r'role "([^"]*)" does not exist', said):
        return StoreError(f"there is no user {found[1]} at {url}: name another in the URL, or use 'createuser'")
    if "pg_hba.conf" in said or "permission denied for database" in said:
        return StoreReadOnlyError(f"the server of {url} does not admit you ({one_line(error)}): ask its administrator")
    if "too many clients" in said or "connection slots" in said or "too many connections" in said:
        return StoreError(
            f"the server of {url} has no connection left ({one_line(error)}): wait, or raise max_connections"
        )
    return StoreUnreachableError(
        f"cannot reach the server of {url} ({one_line(error)}): check that it runs, and host and port of the URL"
    )


def one_line(error: object) -> str:
    """The first line of what the driver said: the others are hints, or the statement it points at."""
    said = str(error).partition("\n")[0]
    for prefix in ("connection failed: ", "connection is bad: ", "consuming input failed: "):
        said = said.removeprefix(prefix)
    return " ".join(said.split()).rstrip(".") or type(error).__name__
