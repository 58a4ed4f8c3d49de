"""The state of a session as its store has it; needs neither TVM nor the session's process."""

from __future__ import annotations

from typing import Any

from slipstream.session.budget import budget_of
from slipstream.session.events import Snapshot
from slipstream.session.state_names import SHAPES, WEIGHTS
from slipstream.session.stored_history import StoredHistory, state_of
from slipstream.store import Store

__all__ = ["snapshot_of", "state_of"]


def snapshot_of(store: Store, session: str) -> Snapshot:
    """What a watcher would have seen last, as far as the store has it."""
    found = StoredHistory.of(store, session)
    record, history = found.record, found.history
    assert record is not None
    slots = history.slots
    at = {trial.slot: (slots[trial.slot].ended, latency) for trial, latency in history.steps}
    open_slots = [slot for slot in slots.values() if slot.ended is None]
    start, latency = history.start_latency, history.latency
    return Snapshot(
        session=session,
        model=record.model_name,
        target=_target(found.hardware, record.options.get("dtype", "float32")),
        phase="done" if record.status == "finished" else "tune",
        elapsed=record.elapsed,
        remaining=budget_of(store, record).remaining(record.elapsed, history.answered, start, latency),
        start_latency=start,
        latency=latency,
        curve=sorted((ended, latency) for ended, latency in at.values() if ended is not None),
        operators=[operator.row for operator in history.operators.values()],
        slots=history.given_slots,
        trials=history.trials,
        default_trials=history.default_trials,
        current=open_slots[-1].operator if open_slots and record.status == "running" else None,
        failures=dict(history.failures),
        split=record.result.get("split", {}),
        left=found.left,
        fallback=record.result.get("fallback", ""),
        whole_gain=record.result.get("whole_gain"),
        calls=found.saved.get(SHAPES, {}),
        weights=found.saved.get(WEIGHTS, {}),
    )


def _target(hardware: dict[str, Any], dtype: str) -> str:
    """As `str` of the target says it."""
    machine, architecture = hardware.get("machine", "?"), hardware.get("architecture", "?")
    short = f", {dtype}" if dtype != "float32" else ""
    if hardware.get("kind") == "cuda":
        return f"{machine} ({architecture}){short}"
    return f"{hardware.get('cpu', machine)} ({architecture}), {hardware.get('threads', '?')} threads{short}"
