"""Sessions: what was asked, what was proposed in each slot, and what is needed to resume."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.store.catalogue import id_of, program_id
from slipstream.store.database import Database
from slipstream.store.errors import StoreError
from slipstream.store.records import STATUSES, ProgramRecord, SessionRecord, SlotRecord

_SELECT = """
SELECT session.name, model.fingerprint, model.name, hardware.digest, options, created_at, status, elapsed, result
FROM session JOIN model ON model.id = session.model JOIN hardware ON hardware.id = session.hardware
"""


def create(db: Database, model: str, hardware: str, options: Mapping[str, Any], operators: Mapping[str, int]) -> str:
    now = time.time()
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}"
    add(db, SessionRecord(name, model, "", hardware, dict(options), now, "running", 0.0, {}), operators)
    return name


def add(db: Database, record: SessionRecord, operators: Mapping[str, int]) -> None:
    """Write a session as it is; `create` makes new ones."""
    model, hardware = id_of(db, "model", record.model), id_of(db, "hardware", record.hardware)
    session = db.execute(
        "INSERT INTO session (name, model, hardware, options, created_at, status, elapsed, result) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.id,
            model,
            hardware,
            json.dumps(record.options),
            record.created_at,
            record.status,
            record.elapsed,
            json.dumps(record.result),
        ),
    )
    for key, weight in operators.items():
        db.execute("INSERT INTO session_operator VALUES (?, ?, ?)", (session, id_of(db, "operator", key), weight))


def sessions(db: Database) -> list[SessionRecord]:
    return [_record(row) for row in db.rows(f"{_SELECT} ORDER BY session.id")]


def session(db: Database, name: str) -> SessionRecord:
    row = db.row(f"{_SELECT} WHERE session.name = ?", (name,))
    if row is None:
        raise StoreError(f"{db.path} has no session {name}: 'slipstream store stats {db.path}' lists them")
    return _record(row)


def _record(row: tuple[Any, ...]) -> SessionRecord:
    name, model, model_name, hardware, options, created_at, status, elapsed, result = row
    return SessionRecord(
        name, model, model_name, hardware, json.loads(options), created_at, status, elapsed, json.loads(result)
    )


def operators(db: Database, name: str) -> dict[str, int]:
    """Key and weight, in the order they were given."""
    return dict(
        db.rows(
            "SELECT operator.key, weight FROM session_operator JOIN operator ON operator.id = operator "
            "WHERE session = ? ORDER BY session_operator.rowid",
            (id_of(db, "session", name),),
        )
    )


def update(db: Database, name: str, status: str | None, elapsed: float | None, result: dict[str, Any] | None) -> None:
    if status is not None and status not in STATUSES:
        raise StoreError(f"a session cannot be {status!r}: use one of {', '.join(STATUSES)}")
    db.execute(
        "UPDATE session SET status = coalesce(?, status), elapsed = coalesce(?, elapsed), "
        "result = coalesce(?, result) WHERE id = ?",
        (status, elapsed, None if result is None else json.dumps(result), id_of(db, "session", name)),
    )


def begin_slot(
    db: Database,
    name: str,
    slot: int,
    operator: str,
    programs: Sequence[ProgramRecord],
    search_seconds: float,
    note: dict[str, Any],
) -> None:
    session = id_of(db, "session", name)
    if db.row("SELECT 1 FROM slot WHERE session = ? AND slot = ?", (session, slot)):
        raise StoreError(f"slot {slot} of session {name} has begun before: go on with it, or use the next number")
    db.execute(
        "INSERT INTO slot VALUES (?, ?, ?, ?, ?, 0, '{}')",
        (session, slot, id_of(db, "operator", operator), search_seconds, json.dumps(note)),
    )
    for position, program in enumerate(programs):
        number, _ = program_id(db, operator, program)
        db.execute("INSERT INTO slot_program VALUES (?, ?, ?, ?, ?)", (session, slot, position, number, program.origin))


def finish_slot(db: Database, name: str, slot: int, stats: dict[str, Any]) -> None:
    changed = db.change(
        "UPDATE slot SET finished = 1, stats = ? WHERE session = ? AND slot = ?",
        (json.dumps(stats), id_of(db, "session", name), slot),
    )
    if not changed:
        raise StoreError(f"slot {slot} of session {name} has not begun: begin_slot comes first")


def slots(db: Database, name: str) -> list[SlotRecord]:
    session = id_of(db, "session", name)
    programs: dict[int, list[ProgramRecord]] = {}
    proposed = db.rows(
        "SELECT slot, sketch.digest, program.decisions, origin FROM slot_program "
        "JOIN program ON program.id = slot_program.program JOIN sketch ON sketch.id = program.sketch "
        "WHERE session = ? ORDER BY slot, position",
        (session,),
    )
    for slot, sketch, decisions, origin in proposed:
        programs.setdefault(slot, []).append(ProgramRecord(sketch, decisions, origin))
    rows = db.rows(
        "SELECT slot, operator.key, search_seconds, note, finished, stats FROM slot "
        "JOIN operator ON operator.id = slot.operator WHERE session = ? ORDER BY slot",
        (session,),
    )
    return [
        SlotRecord(slot, key, tuple(programs.get(slot, ())), seconds, json.loads(note), bool(done), json.loads(stats))
        for slot, key, seconds, note, done, stats in rows
    ]


def put_state(db: Database, name: str, what: str, slot: int, blob: bytes) -> None:
    db.execute(
        "INSERT INTO state VALUES (?, ?, ?, ?) "
        "ON CONFLICT (session, name) DO UPDATE SET slot = excluded.slot, blob = excluded.blob",
        (id_of(db, "session", name), what, slot, blob),
    )


def state(db: Database, name: str, what: str) -> tuple[int, bytes] | None:
    found: tuple[int, bytes] | None = db.row(
        "SELECT slot, blob FROM state WHERE session = ? AND name = ?", (id_of(db, "session", name), what)
    )
    return found


def states(db: Database, name: str) -> list[tuple[str, int, bytes]]:
    """All that is kept for a session: name, slot, contents."""
    return db.rows("SELECT name, slot, blob FROM state WHERE session = ?", (id_of(db, "session", name),))
