"""The log view of a tuning session: one line for each slot, phase and message."""

from __future__ import annotations

import math

from slipstream.cli.line_output import LineOutput
from slipstream.cli.tune_frame import time_left
from slipstream.cli.tune_quiet import QuietView
from slipstream.session.events import Event, OperatorProgress, Snapshot, trials_and_slots
from slipstream.session.quantities import duration, factor, latency, one_line
from slipstream.session.shapes import latencies_now

_BETWEEN_IMPROVEMENTS = 5.0


class PlainView(QuietView):
    """Started, each phase, each slot, messages, the end, and improvements at most every few seconds."""

    def __init__(self, output: LineOutput) -> None:
        self._output = output
        self._improved_at = -math.inf

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        if event.kind == "improved":
            if event.elapsed - self._improved_at < _BETWEEN_IMPROVEMENTS:
                return
            self._improved_at = event.elapsed
        said = _describe(event, snapshot)
        if said:
            self._output.write(one_line(f"{duration(event.elapsed):>7}  {said}"))


def _describe(event: Event, snapshot: Snapshot) -> str:
    match event.kind:
        case "started":
            left = time_left(snapshot.remaining) or "no budget set"
            return f"tuning {snapshot.model} for {snapshot.target}, {len(snapshot.operators)} operators, {left}"
        case "phase":
            return _listed(snapshot.phase, snapshot.doing)
        case "improved":
            row = _operator(event, snapshot)
            return _listed(f"improved: {row.name} {latency(row.best)}" if row else "improved", _model(snapshot))
        case "slot_done":
            return _slot(event, snapshot)
        case "message":
            return str(event.data.get("text", ""))
        case "finished":
            return f"finished: {_model(snapshot)}, {trials_and_slots(snapshot)}{_failed(snapshot)}"
    return ""


def _slot(event: Event, snapshot: Snapshot) -> str:
    row = _operator(event, snapshot)
    slot = f"slot {snapshot.slots}: {row.name} {_gains(row)}" if row else f"slot {snapshot.slots}"
    failed = sum(dict(snapshot.failures).values())
    left = str(snapshot.left) if snapshot.left is not None else ""
    return _listed(slot, _model(snapshot), left, time_left(snapshot.remaining), f"{failed} failed" if failed else "")


def _operator(event: Event, snapshot: Snapshot) -> OperatorProgress | None:
    """The one the event is about: its key is in the data, or it is the one that has the slot."""
    key = event.data.get("operator", snapshot.current)
    return next((row for row in snapshot.operators if row.key == key), None)


def _gains(row: OperatorProgress) -> str:
    """The operator's best time, the gain of the slot and that of all its slots."""
    if not math.isfinite(row.best):
        return "has no working program yet"
    before = row.recent[-2] if len(row.recent) > 1 else row.start
    return f"{latency(row.best)} ({factor(before, row.best)} this slot, {factor(row.start, row.best)} in all)"


def _model(snapshot: Snapshot) -> str:
    if not math.isfinite(snapshot.latency):
        return "model not timed yet"
    if snapshot.weights:
        rows = latencies_now(snapshot)
        return ", ".join(f"{row.shape} {latency(row.latency)} ({factor(row.start, row.latency)})" for row in rows)
    return f"model {latency(snapshot.latency)} ({factor(snapshot.start_latency, snapshot.latency)})"


def _failed(snapshot: Snapshot) -> str:
    failures = sorted(dict(snapshot.failures).items(), key=lambda item: -item[1])
    return "; failed: " + ", ".join(f"{kind} {count}" for kind, count in failures) if failures else ""


def _listed(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
