"""A session's rows out of its store, as columns; reading again takes only what is new.

The store is opened for each reading and closed again: nothing is held open that a tuning run could trip over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from slipstream.session.records import DEFAULTS
from slipstream.session.status import state_of
from slipstream.store import SessionRecord, Store

_MESSAGE = 400  # characters of a failure's message that are kept


@dataclass(frozen=True)
class OperatorRow:
    """An operator of the session, without its module."""

    key: str
    name: str
    kinds: tuple[str, ...]
    flops: int
    bytes: int
    weight: int


@dataclass
class SlotRow:
    """A slot; `ended` is the session's time when it was finished, None while it is open."""

    number: int
    operator: int
    search_seconds: float
    default: bool
    ended: float | None


@dataclass(frozen=True)
class TrialRow:
    """A trial; `seconds` is None if it failed, `done_at` the time of day when it was over."""

    operator: int
    slot: int
    position: int
    program: int
    origin: str
    seconds: float | None
    failure: str | None
    message: str
    spent: float
    run_seconds: float
    done_at: float


@dataclass
class Rows:
    """All that is known of a session so far."""

    session: str
    record: SessionRecord | None = None
    state: str = "running"
    hardware: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)  # see session/kept.py
    operators: list[OperatorRow] = field(default_factory=list)
    slots: list[SlotRow] = field(default_factory=list)
    trials: list[TrialRow] = field(default_factory=list)
    _last_trial: int = 0
    _numbers: dict[int, int] = field(default_factory=dict)  # the store's row of an operator -> its place here

    def read(self, store: Store) -> None:
        """Take in what has been written since the last time."""
        self.record = store.session(self.session)
        self.state = state_of(store, self.record)
        (row,) = store.database.row("SELECT id FROM session WHERE name = ?", (self.session,)) or (0,)
        if not self.operators:
            self.hardware = store.hardware(self.record.hardware)
            self._read_operators(store, row)
        self.kept = _kept(store, row)
        self._read_slots(store, row)
        self._read_trials(store, row)

    def _read_operators(self, store: Store, session: int) -> None:
        rows = store.database.rows(
            "SELECT operator.id, key, name, kinds, flops, bytes, weight FROM session_operator "
            "JOIN operator ON operator.id = operator WHERE session = ? ORDER BY session_operator.rowid",
            (session,),
        )
        for number, key, name, kinds, flops, size, weight in rows:
            self._numbers[number] = len(self.operators)
            self.operators.append(OperatorRow(key, name, tuple(json.loads(kinds)), flops, size, weight))

    def _read_slots(self, store: Store, session: int) -> None:
        """Slots that were open the last time are read again, and with them all that follow."""
        known = next((n for n, slot in enumerate(self.slots) if slot.ended is None), len(self.slots))
        first = self.slots[known].number if known < len(self.slots) else (self.slots[-1].number + 1 if known else 0)
        del self.slots[known:]
        rows = store.database.rows(
            "SELECT slot, operator, search_seconds, note, finished, stats FROM slot "
            "WHERE session = ? AND slot >= ? ORDER BY slot",
            (session, first),
        )
        for slot, operator, seconds, note, finished, stats in rows:
            if operator in self._numbers:
                ended = json.loads(stats).get("elapsed") if finished else None
                default = json.loads(note) == DEFAULTS
                self.slots.append(SlotRow(slot, self._numbers[operator], seconds, default, ended))

    def _read_trials(self, store: Store, session: int) -> None:
        rows = store.database.rows(
            "SELECT id, operator, slot, position, program, origin, median, failure, message, "
            "build_seconds, run_seconds, overhead_seconds, measured_at FROM trial "
            "WHERE session = ? AND id > ? AND slot IS NOT NULL ORDER BY id",
            (session, self._last_trial),
        )
        for row in rows:
            number, operator, slot, position, program, origin, median, failure, message, build, run, over, at = row
            self._last_trial = number
            if operator in self._numbers:
                spent = build + run + over
                place, text = self._numbers[operator], message[:_MESSAGE]
                self.trials.append(
                    TrialRow(place, slot, position or 0, program, origin, median, failure, text, spent, run, at + spent)
                )


def _kept(store: Store, session: int) -> dict[str, Any]:
    """What the session keeps besides its trials, as far as it is JSON; the cost model's state is not read."""
    rows = store.database.rows("SELECT name, blob FROM state WHERE session = ? AND length(blob) < 4000000", (session,))
    found = {}
    for name, blob in rows:
        try:
            found[name] = json.loads(blob)
        except ValueError:
            continue
    return found


def programs(store: Store, numbers: list[int]) -> dict[int, tuple[str, str]]:
    """Digest of the sketch and decisions of programs, by their rows."""
    found: dict[int, tuple[str, str]] = {}
    for start in range(0, len(numbers), 500):
        part = numbers[start : start + 500]
        for number, sketch, decisions in store.database.rows(
            "SELECT program.id, sketch.digest, decisions FROM program JOIN sketch ON sketch.id = program.sketch "
            f"WHERE program.id IN ({', '.join('?' * len(part))})",
            part,
        ):
            found[number] = (sketch, decisions)
    return found
