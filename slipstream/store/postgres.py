"""A store in a PostgreSQL database: how it is connected to, and what happens when the connection is lost."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeAlias
from weakref import WeakSet

import psycopg
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import StrDumperUnknown

from slipstream.store.database import BUSY_SECONDS, Database, Values
from slipstream.store.errors import SessionBusyError, StoreDamagedError, StoreError, StoreUnreachableError
from slipstream.store.location import PostgresUrl
from slipstream.store.postgres_dialect import NAMESPACE, creation, in_postgres
from slipstream.store.postgres_errors import cannot_connect, is_lost, lost, one_line, plain_errors
from slipstream.store.versions import require_version

logger = logging.getLogger(__name__)

# How long to try to connect again when the connection was lost: a server restarts in seconds.
RECONNECT_SECONDS = 20.0

# A killed owner's session is free when the server has noticed; on one machine that takes milliseconds.
_OWN_SECONDS, _POLL_SECONDS = 0.5, 0.02

# A server, or a client, that has vanished from the network is noticed within a minute.
_CLIENT_OPTIONS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}

# `synchronous_commit` is left as it is unless a commit would not wait for the disk.
_SETTINGS = f"""
SELECT set_config('search_path', '{NAMESPACE}', false), set_config('lock_timeout', %s, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('default_transaction_read_only', %s, false), set_config('tcp_keepalives_idle', '30', false),
    set_config('tcp_keepalives_interval', '10', false), set_config('tcp_keepalives_count', '3', false),
    set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false)
"""

_FOUND = f"""
SELECT current_setting('server_encoding'), to_regclass('{NAMESPACE}.version') IS NOT NULL,
    EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('{NAMESPACE}'))
"""

_OWNER = """
SELECT application_name, backend_start, pid FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND granted AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = ?
"""

Connection: TypeAlias = "psycopg.Connection[Any]"
_connections: WeakSet[Connection] = WeakSet()


class PostgresDatabase(Database):
    """Any number of processes read and write at once. A commit is on the server's disk before `transaction` returns.

    A connection that is lost between transactions is made anew; one that is lost within a transaction is an error.
    """

    def __init__(self, url: PostgresUrl, *, read_only: bool) -> None:
        super().__init__(url)
        self.url, self.read_only = url, read_only
        self.connection = _connect(url, read_only)
        self._backend = self.connection.info.backend_pid
        self._owned: set[str] = set()
        self._process = os.getpid()
        self._has_catalogue = False

    @classmethod
    def open(cls, url: PostgresUrl, *, create: bool, read_only: bool) -> PostgresDatabase:
        """Open a store for use, creating it in a database that has none where that is allowed."""
        database = cls(url, read_only=read_only)
        try:
            database._require_store(create=create and not read_only)
        except BaseException:
            database.close()
            raise
        return database

    def run(self, sql: str, values: Values = ()) -> Any:
        try:
            return self.connection.execute(in_postgres(sql), values)
        except psycopg.Error as error:
            if self._inside or not is_lost(error, self.connection):
                raise
            self._connect_again(error)
            return self.connection.execute(in_postgres(sql), values)

    def insert(self, sql: str, values: Values = ()) -> int:
        with self.errors():
            return int(self.run(f"{sql} RETURNING id", values).fetchone()[0])

    def execute_many(self, sql: str, rows: Iterable[Values]) -> None:
        with self.errors():
            self.connection.cursor().executemany(in_postgres(sql), rows)

    def errors(self) -> AbstractContextManager[None]:
        return plain_errors(self.url)

    def begin(self, alone: bool) -> None:
        self._has_catalogue = False
        self.run("BEGIN")
        if alone:
            self.lock_catalogue()
            self.connection.execute("LOCK TABLE program, slot_program, trial IN SHARE ROW EXCLUSIVE MODE")

    def roll_back(self) -> None:
        with suppress(psycopg.Error):  # a lost connection has been rolled back by the server
            self.connection.execute("ROLLBACK")

    def lock_catalogue(self) -> None:
        # Two transactions that add the same rows in different orders would wait for each other.
        if not self._has_catalogue:
            self.connection.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_number("catalogue"),))
            self._has_catalogue = True

    def reclaim(self) -> None:
        self.execute("VACUUM (ANALYZE) trial, program")

    @property
    def bytes(self) -> int:
        """The size of its tables and indices."""
        sizes = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
        return int(self.rows(f"{sizes} WHERE relnamespace = '{NAMESPACE}'::regnamespace AND relkind = 'r'")[0][0])

    def is_same(self, other: Database) -> bool:
        return isinstance(other, PostgresDatabase) and self._identity() == other._identity()

    def _identity(self) -> Any:
        return self.row("SELECT pg_postmaster_start_time(), oid FROM pg_database WHERE datname = current_database()")

    def close(self) -> None:
        if os.getpid() == self._process:
            self.connection.close()

    # Ownership: a lock of the server, which ends with the connection, however that ends.

    @contextmanager
    def own(self, session: str) -> Iterator[None]:
        if session in self._owned:
            raise SessionBusyError(_owned_here(session))
        with self.errors():
            self._take(session, _OWN_SECONDS)
        self._owned.add(session)
        try:
            yield
        finally:
            self._owned.discard(session)
            if os.getpid() == self._process:
                with suppress(psycopg.Error):
                    self.connection.execute("SELECT pg_advisory_unlock(%s)", (_lock_number(session),))

    def is_owned(self, session: str) -> bool:
        return self.row(_OWNER, (_lock_number(session),)) is not None

    def _take(self, session: str, seconds: float) -> None:
        number, deadline = _lock_number(session), time.monotonic() + seconds
        while not self.run("SELECT pg_try_advisory_lock(?)", (number,)).fetchone()[0]:
            if time.monotonic() > deadline:
                raise SessionBusyError(_who_owns(session, self.run(_OWNER, (number,)).fetchone()))
            time.sleep(_POLL_SECONDS)

    def _connect_again(self, why: psycopg.Error) -> None:
        """Connect and hold the same sessions, or raise StoreUnreachableError."""
        logger.warning("the connection to %s was lost (%s): connecting again", self.url, one_line(why))
        self.ids.clear()
        self.close()
        deadline, pause = time.monotonic() + RECONNECT_SECONDS, 0.1
        while True:
            try:
                self.connection = _connect(self.url, self.read_only)
                break
            except StoreUnreachableError as error:
                if time.monotonic() + pause > deadline:
                    raise lost(self.url, why) from error
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
        if os.getpid() != self._process:  # a forked child has a connection of its own now, and owns nothing
            self._process = os.getpid()
            self._owned.clear()
        for session in self._owned:
            # The server may not have noticed yet that the old connection is gone.
            self.run(
                f"SELECT pg_terminate_backend(pid) FROM ({_OWNER}) AS owner WHERE application_name = ? AND pid = ?",
                (_lock_number(session), _application_name(), self._backend),
            )
            self._take(session, _OWN_SECONDS)
        self._backend = self.connection.info.backend_pid

    def _require_store(self, *, create: bool) -> None:
        """Refuse what is no store, and a store of another version; make one in a database that has none."""
        with self.errors():
            if not self._has_tables():
                if not create:
                    raise StoreError(f"there is no store in {self.url}: tune a model with --store {self.url} first")
                with self.transaction():
                    self.lock_catalogue()
                    if not self._has_tables():  # or another process was faster
                        for statement in creation():
                            self.run(statement)
            (version,) = self.run("SELECT version FROM version").fetchone()
            require_version(version, self.url)

    def _has_tables(self) -> bool:
        encoding, is_store, is_something = self.run(_FOUND).fetchone()
        if encoding != "UTF8":
            raise StoreError(
                f"{self.url} has the encoding {encoding}: make a database with 'createdb -E UTF8 -T template0 NAME'"
            )
        if is_something and not is_store:
            raise StoreDamagedError(f"the schema {NAMESPACE} of {self.url} holds no store: choose another database")
        return bool(is_store)


class _Flag(Dumper):
    """SQLite has no type for true and false."""

    def dump(self, obj: bool) -> bytes:
        return b"1" if obj else b"0"


class _Text(StrDumperUnknown):
    """PostgreSQL's text has no zero bytes; a compiler's message may."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))


def _connect(url: PostgresUrl, read_only: bool) -> Connection:
    try:
        given = conninfo_to_dict(url.text)
    except psycopg.Error as error:
        raise StoreError(f"{url} cannot be used ({one_line(error)}): write postgresql://USER@HOST/DATABASE") from error
    options: dict[str, Any] = {**_CLIENT_OPTIONS, **given, **dict(url.secrets)}
    options |= {"application_name": _application_name(), "client_encoding": "UTF8"}
    try:
        connection = psycopg.connect(**options, autocommit=True)
    except psycopg.Error as error:
        raise cannot_connect(error, url) from error
    connection.adapters.register_dumper(str, _Text)
    connection.adapters.register_dumper(bool, _Flag)
    _connections.add(connection)
    with plain_errors(url):
        connection.execute(_SETTINGS, (f"{BUSY_SECONDS * 1000:.0f}ms", "on" if read_only else "off"))
    return connection


def _leave_to_parent() -> None:
    """In a forked child: the connection is the parent's, and must end with it though the child lives on."""
    ended, other_end = socket.socketpair()
    other_end.close()
    for connection in _connections:
        with suppress(psycopg.Error):
            os.dup2(ended.fileno(), connection.fileno(), inheritable=False)
    ended.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def _lock_number(name: str) -> int:
    """The number by which PostgreSQL has a lock, out of 2^63."""
    digest = hashlib.blake2b(f"slipstream {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _application_name() -> str:
    """Shown to whoever wants the same session; the server keeps 63 characters of it."""
    return f"slipstream process {os.getpid()} on {socket.gethostname()}"[:63]


def _owned_here(session: str) -> str:
    return f"this process works on session {session} already: close it first"


def _who_owns(session: str, owner: Any | None) -> str:
    if owner is None:
        return f"session {session} is being worked on by another process, which is just starting or ending: try again"
    name, since, _ = owner
    if name == _application_name():
        return _owned_here(session)
    began = f" since {since:%Y-%m-%d %H:%M:%S}" if since else ""
    who = name.removeprefix("slipstream ") or "another process"
    return f"session {session} is being worked on by {who}{began}: wait for it, or stop it and try again"
