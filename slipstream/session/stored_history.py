"""A session as its store has it: its history and what else it has saved; reading again takes only what is new."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from slipstream.session.events import Left
from slipstream.session.history import History, OperatorHistory, Slot, Trial
from slipstream.session.records import DEFAULTS, LOST
from slipstream.session.settings import Settings
from slipstream.store import SessionRecord, Store

_MESSAGE = 400  # characters of a failure's message that are kept


def state_of(store: Store, record: SessionRecord) -> str:
    """The record's status, but for what it cannot say: that the process was killed, or is compiling its result."""
    if record.status == "finished":
        return "finished"
    if store.is_owned(record.id):
        return "running"
    return "killed" if record.status == "running" else record.status


@dataclass
class StoredHistory:
    """`saved` are the values that are kept under the names of `state_names.py`."""

    session: str
    record: SessionRecord | None = None
    state: str = "running"
    hardware: dict[str, Any] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)
    left: Left | None = None  # what more tuning would bring, as it was estimated at the end of the last slot
    _last_trial: int = 0
    _keys: dict[int, str] = field(default_factory=dict)  # the store's row of an operator -> its key

    @classmethod
    def of(cls, store: Store, session: str) -> StoredHistory:
        found = cls(session)
        found.read(store)
        return found

    @property
    def settings(self) -> Settings:
        assert self.record is not None
        return Settings.from_json(self.record.options.get("settings", {}))

    def read(self, store: Store) -> None:
        """Take in what has been written since the last time."""
        self.record = store.session(self.session)
        self.state = state_of(store, self.record)
        (row,) = store.database.row("SELECT id FROM session WHERE name = ?", (self.session,)) or (0,)
        if not self._keys:
            self.hardware = store.hardware(self.record.hardware)
            self._read_operators(store, row)
        self.saved = _saved(store, row)
        trials = self._new_trials(store, row)  # before the slots: one that begins meanwhile has no trial here
        ended = self._begin_slots(store, row)
        self._add(trials)
        for number, stats in ended.items():
            self.history.end(number, stats.get("elapsed", 0.0), exhausted=stats.get("exhausted", False))
            self.left = Left(**stats["left"]) if stats.get("left") else self.left
        settings = self.settings
        for operator in self.history.operators.values():
            operator.update_row(settings.patience_trials, settings.most_trials)

    def _read_operators(self, store: Store, session: int) -> None:
        rows = store.database.rows(
            "SELECT operator.id, key, name, kinds, flops, bytes, weight FROM session_operator "
            "JOIN operator ON operator.id = operator WHERE session = ? ORDER BY session_operator.rowid",
            (session,),
        )
        self._keys = {row[0]: row[1] for row in rows}
        self.history = History(
            OperatorHistory(key, name, weight, flops, tuple(json.loads(kinds)), size)
            for _, key, name, kinds, flops, size, weight in rows
        )

    def _begin_slots(self, store: Store, session: int) -> dict[int, dict[str, Any]]:
        """Take in new slots; what was stored at the end of those that ended since the last time."""
        slots = self.history.slots
        first = next((slot.number for slot in slots.values() if slot.ended is None), max(slots, default=-1) + 1)
        rows = store.database.rows(
            "SELECT slot, operator, search_seconds, note, finished, stats FROM slot "
            "WHERE session = ? AND slot >= ? ORDER BY slot",
            (session, first),
        )
        ended = {}
        for number, operator, seconds, note_text, finished, stats in rows:
            if operator not in self._keys:
                continue
            if number not in slots:
                note = json.loads(note_text)
                default, lost = note == DEFAULTS, note.get(LOST, "")
                self.history.begin(Slot(number, self._keys[operator], default, seconds, lost))
            if finished and slots[number].ended is None:
                ended[number] = json.loads(stats)
        return ended

    def _new_trials(self, store: Store, session: int) -> list[tuple[Any, ...]]:
        return store.database.rows(
            "SELECT id, slot, position, program, origin, median, failure, message, "
            "build_seconds, run_seconds, overhead_seconds, measured_at FROM trial "
            "WHERE session = ? AND id > ? AND slot IS NOT NULL ORDER BY id",
            (session, self._last_trial),
        )

    def _add(self, rows: list[tuple[Any, ...]]) -> None:
        slots = self.history.slots
        for id_, number, position, program, origin, median, failure, said, build, run, overhead, at in rows:
            self._last_trial = id_
            if number in slots:
                seconds, spent = math.inf if median is None else median, build + run + overhead
                self.history.add(
                    Trial(
                        slots[number].operator, number, position or 0, seconds, failure, said[:_MESSAGE], origin,
                        program, build, run, spent, at + spent,
                    )
                )  # fmt: skip


def _saved(store: Store, session: int) -> dict[str, Any]:
    """What the session saved besides slots and trials, as far as it is JSON; the cost model's state is not read."""
    rows = store.database.rows("SELECT name, blob FROM state WHERE session = ? AND length(blob) < 4000000", (session,))
    found = {}
    for name, blob in rows:
        try:
            found[name] = json.loads(blob)
        except ValueError:
            continue
    return found
