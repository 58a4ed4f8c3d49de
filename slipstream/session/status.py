"""The state of a session as its store tells it; needs neither TVM nor the session to be alive."""

from __future__ import annotations

import math

from slipstream.session.budget import budget_of
from slipstream.session.events import Snapshot
from slipstream.session.history import make_tracks
from slipstream.session.records import is_default
from slipstream.session.settings import Settings
from slipstream.store import SessionRecord, Store


def state_of(store: Store, record: SessionRecord) -> str:
    """What the record says, but for what it cannot say: that the session was killed, or is compiling its result."""
    if record.status == "finished":
        return "finished"
    if store.is_owned(record.id):
        return "running"
    return "killed" if record.status == "running" else record.status


def snapshot_of(store: Store, session: str) -> Snapshot:
    """What a watcher would have seen last, as far as the store knows it."""
    record = store.session(session)
    weights = store.session_operators(session)
    known = {key: store.operator(key) for key in weights}
    tracks = make_tracks(
        weights,
        {key: operator.name if operator else key for key, operator in known.items()},
        {key: operator.flops if operator else 0 for key, operator in known.items()},
        {},
    )
    slots = {slot.slot: slot for slot in store.slots(session)}
    curve: list[tuple[float, float]] = []
    last = -1
    for trial in store.trials(session=session):
        slot = slots.get(trial.slot if trial.slot is not None else -1)
        tracks.add(trial, default=slot is not None and is_default(slot) and trial.position == 0)
        complete = all(track.row.trials for track in tracks.by_key.values())
        if complete and slot is not None and slot.slot != last and "elapsed" in slot.stats:
            last = slot.slot
            curve.append((slot.stats["elapsed"], tracks.latency))
    for slot in slots.values():
        if slot.finished and not is_default(slot):
            tracks.by_key[slot.operator].end_slot(exhausted=not slot.programs)
    settings = Settings.from_json(record.options.get("settings", {}))
    for track in tracks.by_key.values():
        track.state(settings.patience_trials)
    timed = {slot.operator for slot in slots.values() if is_default(slot) and slot.finished}
    start, latency = (tracks.start_latency, tracks.latency) if timed >= set(weights) else (math.inf, math.inf)
    unfinished = [slot for slot in slots.values() if not slot.finished]
    hardware = store.hardware(record.hardware)
    return Snapshot(
        session=session,
        model=record.model_name,
        target=f"{hardware.get('cpu', '?')} ({hardware.get('architecture', '?')}), {hardware.get('threads')} threads",
        phase="done" if record.status == "finished" else "tune",
        elapsed=record.elapsed,
        remaining=budget_of(store, record).remaining(record.elapsed, tracks.trials, start, latency),
        start_latency=start,
        latency=latency,
        curve=curve,
        operators=[track.row for track in tracks.by_key.values()],
        slot=len(slots),
        trials=tracks.trials,
        current=unfinished[-1].operator if unfinished and record.status == "running" else None,
        failures=dict(tracks.failures),
        split=record.result.get("split", {}),
        fallback=record.result.get("fallback", ""),
    )
