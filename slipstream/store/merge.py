"""Copying the contents of other stores. A trial that is here already is not taken twice; hardware stays apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.store.errors import StoreError
from slipstream.store.store import Store


@dataclass(frozen=True)
class Merged:
    """What came from one store: trials and sessions that were new, and trials that were not."""

    trials: int
    known: int
    sessions: int


def merge(target: Store, path: Path) -> Merged:
    """Add the contents of the store at `path`, all or nothing."""
    if path.exists() and target.path.samefile(path):
        raise StoreError(f"{path} cannot be merged into itself: name another store")
    with Store.open(path, read_only=True) as source, target.database.transaction():
        _catalogue(target, source)
        new = _sessions(target, source)
        added = known = 0
        for trial in source.trials():
            if target.is_known(trial):
                known += 1
                continue
            # A session that both stores have may have been resumed here: its slot numbers mean something else.
            elsewhere = trial.session not in new
            target.append_trial(replace(trial, session=None, slot=None, position=None) if elsewhere else trial)
            added += 1
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


def _sessions(target: Store, source: Store) -> set[str]:
    """Copy the sessions that are new here, with everything needed to go on with them."""
    here = {name for (name,) in target.database.rows("SELECT name FROM session")}
    new = [record for record in source.sessions() if record.id not in here]
    for record in new:
        target.add_session(record, source.session_operators(record.id))
        for slot in source.slots(record.id):
            target.begin_slot(record.id, slot.slot, slot.operator, slot.programs, slot.search_seconds, slot.note)
            if slot.finished:
                target.finish_slot(record.id, slot.slot, slot.stats)
        for name, slot_number, blob in source.states(record.id):
            target.put_state(record.id, name, slot_number, blob)
    return {record.id for record in new}
