"""The store as its users see it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from slipstream.store.catalogue import Catalogue
from slipstream.store.database import Database
from slipstream.store.location import PostgresUrl, StoreLocation, store_location
from slipstream.store.opening import open_database
from slipstream.store.sessions import Sessions
from slipstream.store.trials import Trials


class Store(Catalogue, Sessions, Trials):
    """Everything a tuner learns, in one SQLite file or in a PostgreSQL database. A method that writes returns when its
    data are on the disk.

    Several processes may use one store at once; each thread needs a Store of its own.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    @classmethod
    def open(cls, location: str | Path | PostgresUrl, *, create: bool = True, read_only: bool = False) -> Store:
        """Open the store in a file or at a PostgreSQL URL; `create` makes a new one where there is none."""
        return cls(open_database(store_location(location), create=create, read_only=read_only))

    @property
    def location(self) -> StoreLocation:
        return self._db.location

    @property
    def database(self) -> Database:
        """The database itself, for those who maintain it."""
        return self._db

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def own(self, session_id: str) -> AbstractContextManager[None]:
        """Work on a session alone: SessionBusyError if another process does. Ends with the process, if killed."""
        self.session(session_id)
        return self._db.own(session_id)

    def is_owned(self, session_id: str) -> bool:
        """Whether some process works on the session now."""
        return self._db.is_owned(session_id)
