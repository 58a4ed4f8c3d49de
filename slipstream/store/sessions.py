"""Sessions: what was asked, what was proposed in each slot, and what is needed to resume."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.store.catalogue import id_of, program_ids
from slipstream.store.database import Database
from slipstream.store.errors import StoreError
from slipstream.store.records import STATUSES, ProgramRecord, SessionRecord, SlotRecord

_SELECT = """
SELECT session.name, model.fingerprint, model.name, hardware.digest, options, created_at, status, elapsed, result
FROM session JOIN model ON model.id = session.model JOIN hardware ON hardware.id = session.hardware
"""


class Sessions:
    """The part of a store that holds sessions."""

    _db: Database

    def create_session(
        self, model: str, hardware: str, options: Mapping[str, Any], operators: Mapping[str, int]
    ) -> str:
        """Begin a session on a model's fingerprint; `operators` are keys and weights. Its id."""
        now = time.time()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}"
        self.add_session(SessionRecord(name, model, "", hardware, dict(options), now, "running", 0.0, {}), operators)
        return name

    def add_session(self, record: SessionRecord, operators: Mapping[str, int]) -> None:
        """Write a session as it is; `create_session` makes new ones."""
        db = self._db
        with db.transaction():
            model, hardware = id_of(db, "model", record.model), id_of(db, "hardware", record.hardware)
            options, result = json.dumps(record.options), json.dumps(record.result)
            session = db.insert(
                "INSERT INTO session (name, model, hardware, options, created_at, status, elapsed, result) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (record.id, model, hardware, options, record.created_at, record.status, record.elapsed, result),
            )
            rows = [(session, id_of(db, "operator", key), weight) for key, weight in operators.items()]
            db.execute_many("INSERT INTO session_operator VALUES (?, ?, ?)", rows)

    def sessions(self) -> list[SessionRecord]:
        return [_record(row) for row in self._db.rows(f"{_SELECT} ORDER BY session.id")]

    def session(self, id: str) -> SessionRecord:
        row = self._db.row(f"{_SELECT} WHERE session.name = ?", (id,))
        if row is None:
            where = self._db.location
            raise StoreError(f"{where} has no session {id}: 'slipstream store stats {where}' lists them")
        return _record(row)

    def session_operators(self, id: str) -> dict[str, int]:
        """Key and weight, in the order they were given."""
        return dict(
            self._db.rows(
                "SELECT operator.key, weight FROM session_operator JOIN operator ON operator.id = operator "
                "WHERE session = ? ORDER BY session_operator.rowid",
                (id_of(self._db, "session", id),),
            )
        )

    def update_session(
        self,
        id: str,
        *,
        status: str | None = None,
        elapsed: float | None = None,
        result: dict[str, Any] | None = None,
    ) -> None:
        if status is not None and status not in STATUSES:
            raise StoreError(f"a session cannot be {status!r}: use one of {', '.join(STATUSES)}")
        with self._db.transaction():
            self._db.execute(
                "UPDATE session SET status = coalesce(?, status), elapsed = coalesce(?, elapsed), "
                "result = coalesce(?, result) WHERE id = ?",
                (status, elapsed, None if result is None else json.dumps(result), id_of(self._db, "session", id)),
            )

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
        db = self._db
        with db.transaction():
            row = id_of(db, "session", session)
            if db.row("SELECT 1 FROM slot WHERE session = ? AND slot = ?", (row, slot)):
                raise StoreError(
                    f"slot {slot} of session {session} has begun before: go on with it, or use the next number"
                )
            db.execute(
                "INSERT INTO slot VALUES (?, ?, ?, ?, ?, 0, '{}')",
                (row, slot, id_of(db, "operator", operator), search_seconds, json.dumps(note)),
            )
            numbers = program_ids(db, [(operator, program) for program in programs])
            db.execute_many(
                "INSERT INTO slot_program VALUES (?, ?, ?, ?, ?)",
                [(row, slot, place, numbers[place], program.origin) for place, program in enumerate(programs)],
            )

    def finish_slot(self, session: str, slot: int, stats: dict[str, Any]) -> None:
        with self._db.transaction():
            changed = self._db.change(
                "UPDATE slot SET finished = 1, stats = ? WHERE session = ? AND slot = ?",
                (json.dumps(stats), id_of(self._db, "session", session), slot),
            )
            if not changed:
                raise StoreError(f"slot {slot} of session {session} has not begun: begin_slot comes first")

    def slots(self, session: str) -> list[SlotRecord]:
        row = id_of(self._db, "session", session)
        programs: dict[int, list[ProgramRecord]] = {}
        proposed = self._db.rows(
            "SELECT slot, sketch.digest, program.decisions, origin FROM slot_program "
            "JOIN program ON program.id = slot_program.program JOIN sketch ON sketch.id = program.sketch "
            "WHERE session = ? ORDER BY slot, position",
            (row,),
        )
        for slot, sketch, decisions, origin in proposed:
            programs.setdefault(slot, []).append(ProgramRecord(sketch, decisions, origin))
        rows = self._db.rows(
            "SELECT slot, operator.key, search_seconds, note, finished, stats FROM slot "
            "JOIN operator ON operator.id = slot.operator WHERE session = ? ORDER BY slot",
            (row,),
        )
        return [
            SlotRecord(
                slot, key, tuple(programs.get(slot, ())), seconds, json.loads(note), bool(done), json.loads(stats)
            )
            for slot, key, seconds, note, done, stats in rows
        ]

    def put_state(self, session: str, name: str, slot: int, blob: bytes) -> None:
        """Keep what a part of the tuner had learned by the end of `slot`; the last one of each name stays."""
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO state VALUES (?, ?, ?, ?) "
                "ON CONFLICT (session, name) DO UPDATE SET slot = excluded.slot, blob = excluded.blob",
                (id_of(self._db, "session", session), name, slot, blob),
            )

    def state(self, session: str, name: str) -> tuple[int, bytes] | None:
        values = (id_of(self._db, "session", session), name)
        found: tuple[int, bytes] | None = self._db.row(
            "SELECT slot, blob FROM state WHERE session = ? AND name = ?", values
        )
        return found

    def states(self, session: str) -> list[tuple[str, int, bytes]]:
        """All that is kept for a session: name, slot, contents."""
        return self._db.rows(
            "SELECT name, slot, blob FROM state WHERE session = ?", (id_of(self._db, "session", session),)
        )


def _record(row: tuple[Any, ...]) -> SessionRecord:
    name, model, model_name, hardware, options, created_at, status, elapsed, result = row
    return SessionRecord(
        name, model, model_name, hardware, json.loads(options), created_at, status, elapsed, json.loads(result)
    )
