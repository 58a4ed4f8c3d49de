"""The store as its users see it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from slipstream.store.catalogue import Catalogue
from slipstream.store.database import Database
from slipstream.store.ownership import is_owned, own
from slipstream.store.sessions import Sessions
from slipstream.store.trials import Trials


class Store(Catalogue, Sessions, Trials):
    """Everything a tuner learns, in one SQLite file. A method that writes returns when its data are on the disk.

    Several processes may use one file at once; each thread needs a Store of its own.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True, read_only: bool = False) -> Store:
        """Open the store at `path`; `create` makes a new one where there is none."""
        return cls(Database.open(Path(path), create=create, read_only=read_only))

    @property
    def path(self) -> Path:
        return self._db.path

    @property
    def database(self) -> Database:
        """The file itself, for those who maintain it."""
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
        return own(self.path, session_id)

    def is_owned(self, session_id: str) -> bool:
        """Whether some process works on the session now."""
        return is_owned(self.path, session_id)
