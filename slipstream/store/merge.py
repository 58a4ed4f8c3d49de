"""Copying the contents of other stores. A trial that is here already is not taken twice; hardware stays apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from slipstream.store.errors import StoreError
from slipstream.store.location import PostgresUrl
from slipstream.store.records import SessionRecord, TrialRecord
from slipstream.store.store import Store

# Trials in a transaction: others may write to the store between two.
_BATCH = 2000


@dataclass(frozen=True)
class Merged:
    """What came from one store: trials and sessions that were new, and trials that were not."""

    trials: int
    known: int
    sessions: int


def merge(target: Store, location: str | Path | PostgresUrl) -> Merged:
    """Add the contents of the store at `location`. A session comes with all of its trials or not at all; a merge that
    was interrupted is completed by another.
    """
    with Store.open(location, read_only=True) as source:
        if target.database.is_same(source.database):
            raise StoreError(f"{source.location} cannot be merged into itself: name another store")
        with target.database.transaction():
            _catalogue(target, source)
        here = {record.id for record in target.sessions()}
        new = {record.id: record for record in source.sessions() if record.id not in here}
        added = known = 0
        for record in new.values():
            with target.database.transaction():
                _add_session(target, source, record)
                counts = _add_trials(target, source.trials(session=record.id))
            added, known = added + counts[0], known + counts[1]
        # A session that both stores have may have been resumed here: its slot numbers mean something else.
        others = (replace(t, session=None, slot=None, position=None) for t in source.trials() if t.session not in new)
        while batch := list(islice(others, _BATCH)):
            with target.database.transaction():
                counts = _add_trials(target, batch)
            added, known = added + counts[0], known + counts[1]
    return Merged(added, known, len(new))


def _catalogue(target: Store, source: Store) -> None:
    for fingerprint, name, where in source.database.rows("SELECT fingerprint, name, source FROM model ORDER BY id"):
        target.add_model(fingerprint, name, where)
    for (digest,) in source.database.rows("SELECT digest FROM hardware ORDER BY id"):
        target.add_hardware(source.hardware(digest))
    target.add_operators(source.operators())
    for (digest,) in source.database.rows("SELECT digest FROM sketch WHERE text IS NOT NULL ORDER BY id"):
        text = source.sketch(digest)
        assert text is not None
        target.add_sketch(digest, text)


def _add_session(target: Store, source: Store, record: SessionRecord) -> None:
    """Copy a session with everything needed to go on with it."""
    target.add_session(record, source.session_operators(record.id))
    for slot in source.slots(record.id):
        target.begin_slot(record.id, slot.slot, slot.operator, slot.programs, slot.search_seconds, slot.note)
        if slot.finished:
            target.finish_slot(record.id, slot.slot, slot.stats)
    for name, slot_number, blob in source.states(record.id):
        target.put_state(record.id, name, slot_number, blob)


def _add_trials(target: Store, trials: Iterable[TrialRecord]) -> tuple[int, int]:
    """How many were new and how many were not."""
    known = 0
    new: dict[object, TrialRecord] = {}
    for trial in trials:
        program = trial.program
        # What `is_known` compares.
        same = (trial.operator, program.sketch, program.decisions, trial.hardware, trial.measured_at, trial.samples)
        if (*same, trial.failure) in new or target.is_known(trial):
            known += 1
        else:
            new[(*same, trial.failure)] = trial
    target.append_trials(new.values())
    return len(new), known
