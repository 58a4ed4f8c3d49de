"""What a store asks of its database, whichever kind it is. Statements are written in the dialect of SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from slipstream.store.location import StoreLocation

Values = Sequence[Any]

# How long to wait for another process's transaction; ours take milliseconds.
BUSY_SECONDS = 30.0


class Database(ABC):
    """A connection whose errors are plain sentences and whose transactions are durable when they have ended."""

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self.ids: dict[tuple[str, str], int] = {}  # table and name -> the row, of rows that are never removed
        self._inside = False  # a transaction

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[None]:
        """All of the block or none of it, durable when the block has ended; inside another one, part of that.

        Where several may write at once, `alone` keeps the others from writing meanwhile.
        """
        if self._inside:
            yield
            return
        with self.errors():
            self.begin(alone)
            self._inside = True
            try:
                yield
                self.run("COMMIT")
            except BaseException:
                self.ids.clear()
                self.roll_back()
                raise
            finally:
                self._inside = False

    def execute(self, sql: str, values: Values = ()) -> None:
        with self.errors():
            self.run(sql, values)

    def change(self, sql: str, values: Values = ()) -> int:
        """Run one statement; how many rows it changed."""
        with self.errors():
            return int(self.run(sql, values).rowcount)

    def rows(self, sql: str, values: Values = ()) -> list[Any]:
        with self.errors():
            return list(self.run(sql, values).fetchall())

    def row(self, sql: str, values: Values = ()) -> Any | None:
        with self.errors():
            return self.run(sql, values).fetchone()

    def stream(self, sql: str, values: Values = ()) -> Generator[Any, None, None]:
        """Rows one at a time. Whoever stops early must close the iterator, or an old snapshot stays alive."""
        with self.errors():
            yield from self.run(sql, values)

    @abstractmethod
    def run(self, sql: str, values: Values = ()) -> Any:
        """The cursor of one statement; errors are the driver's."""

    @abstractmethod
    def insert(self, sql: str, values: Values = ()) -> int:
        """Run an INSERT of one row; its id."""

    @abstractmethod
    def execute_many(self, sql: str, rows: Iterable[Values]) -> None: ...

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """While entered, the driver's errors become one line each that says what to do."""

    @abstractmethod
    def begin(self, alone: bool) -> None: ...

    @abstractmethod
    def roll_back(self) -> None:
        """End the transaction that failed, if there still is one."""

    @abstractmethod
    def lock_catalogue(self) -> None:
        """Until the transaction ends, be the only one that adds rows which sessions share, such as programs."""

    @abstractmethod
    def reclaim(self) -> None:
        """Make the room of removed rows available."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """How much room it takes."""

    @abstractmethod
    def is_same(self, other: Database) -> bool:
        """Whether both are connections to one store."""

    @abstractmethod
    def own(self, session: str) -> AbstractContextManager[None]:
        """Hold a session until the block or the process ends; SessionBusyError names whoever holds it already."""

    @abstractmethod
    def is_owned(self, session: str) -> bool:
        """Whether some process holds the session."""

    @abstractmethod
    def close(self) -> None: ...
