"""The store as its users see it; what each group of methods does is in the file named after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from slipstream.store import catalogue, sessions, trials
from slipstream.store.database import Database
from slipstream.store.ownership import is_owned, own
from slipstream.store.records import OperatorRecord, ProgramRecord, SessionRecord, SlotRecord, TrialRecord


class Store:
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

    def add_hardware(self, descriptor: Mapping[str, Any]) -> str:
        """Remember a piece of hardware; the digest that trials name it by."""
        with self._db.transaction():
            return catalogue.add_hardware(self._db, descriptor)

    def hardware(self, digest: str) -> dict[str, Any]:
        return catalogue.hardware(self._db, digest)

    def add_model(self, fingerprint: str, name: str, source: str) -> None:
        with self._db.transaction():
            catalogue.add_model(self._db, fingerprint, name, source)

    def add_operators(self, records: Iterable[OperatorRecord]) -> None:
        with self._db.transaction():
            catalogue.add_operators(self._db, records)

    def operator(self, key: str) -> OperatorRecord | None:
        return catalogue.operator(self._db, key)

    def operators(self) -> Iterator[OperatorRecord]:
        return catalogue.operators(self._db)

    def add_sketch(self, digest: str, text: str) -> None:
        with self._db.transaction():
            catalogue.add_sketch(self._db, digest, text)

    def sketch(self, digest: str) -> str | None:
        return catalogue.sketch(self._db, digest)

    def create_session(
        self, model: str, hardware: str, options: Mapping[str, Any], operators: Mapping[str, int]
    ) -> str:
        """Begin a session on a model's fingerprint; `operators` are keys and weights. Its id."""
        with self._db.transaction():
            return sessions.create(self._db, model, hardware, options, operators)

    def sessions(self) -> list[SessionRecord]:
        return sessions.sessions(self._db)

    def session(self, id: str) -> SessionRecord:
        return sessions.session(self._db, id)

    def session_operators(self, id: str) -> dict[str, int]:
        return sessions.operators(self._db, id)

    def own(self, session_id: str) -> AbstractContextManager[None]:
        """Work on a session alone: SessionBusyError if another process does. Ends with the process, if killed."""
        self.session(session_id)
        return own(self.path, session_id)

    def is_owned(self, session_id: str) -> bool:
        """Whether some process works on the session now."""
        return is_owned(self.path, session_id)

    def update_session(
        self,
        id: str,
        *,
        status: str | None = None,
        elapsed: float | None = None,
        result: dict[str, Any] | None = None,
    ) -> None:
        with self._db.transaction():
            sessions.update(self._db, id, status, elapsed, result)

    def begin_slot(
        self,
        session: str,
        slot: int,
        operator: str,
        programs: Sequence[ProgramRecord],
        search_seconds: float,
        note: dict[str, Any],
    ) -> None:
        """Write down what a slot is going to measure, before it does."""
        with self._db.transaction():
            sessions.begin_slot(self._db, session, slot, operator, programs, search_seconds, note)

    def finish_slot(self, session: str, slot: int, stats: dict[str, Any]) -> None:
        with self._db.transaction():
            sessions.finish_slot(self._db, session, slot, stats)

    def slots(self, session: str) -> list[SlotRecord]:
        return sessions.slots(self._db, session)

    def append_trial(self, trial: TrialRecord) -> int:
        """Its id, once it is on the disk."""
        with self._db.transaction():
            return trials.append(self._db, trial)

    def append_trials(self, records: Iterable[TrialRecord]) -> None:
        """All of them or, if one is refused, none."""
        with self._db.transaction():
            for record in records:
                trials.append(self._db, record)

    def best(self, operator: str, hardware: str) -> TrialRecord | None:
        return next(iter(self.top(operator, hardware, 1)), None)

    def top(self, operator: str, hardware: str, count: int) -> list[TrialRecord]:
        """The fastest trials of `count` different programs on that very hardware, fastest first."""
        return trials.top(self._db, operator, hardware, count)

    def trials(
        self, *, operator: str | None = None, hardware: str | None = None, session: str | None = None
    ) -> Iterator[TrialRecord]:
        """Trials in order of id, read as they are asked for."""
        return trials.trials(self._db, operator, hardware, session)

    def counts(self, hardware: str) -> dict[str, tuple[int, int]]:
        """Operator key -> how many trials it has had on that hardware, and how many of these failed."""
        return trials.counts(self._db, hardware)

    def put_state(self, session: str, name: str, slot: int, blob: bytes) -> None:
        """Keep what a part of the tuner had learned by the end of `slot`; the last one of each name stays."""
        with self._db.transaction():
            sessions.put_state(self._db, session, name, slot, blob)

    def state(self, session: str, name: str) -> tuple[int, bytes] | None:
        return sessions.state(self._db, session, name)
