"""How a session went, in its own time: the model's latency, what each slot gained, where the time went."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.report.session_time import SessionTime
from slipstream.session.stored_history import StoredHistory


@dataclass(frozen=True)
class SlotSpan:
    """A slot of the operator at that place in the session's time; `gain` seconds were taken off the model by it."""

    number: int
    operator: int
    start: float
    end: float
    trials: int
    gain: float
    open: bool


@dataclass
class Course:
    """`curve` has (time, latency, place of the operator that improved) from when all operators are known."""

    time: SessionTime
    curve: list[tuple[float, float, int]]
    spans: list[SlotSpan]
    defaults_end: float
    search_seconds: float
    run_seconds: float
    build_seconds: float


def follow(stored: StoredHistory) -> Course:
    """The course of what has been read so far."""
    time, history = SessionTime(stored), stored.history
    spans = []
    for place, operator in enumerate(history.operators.values()):
        for slot, first, last in operator.spans():
            gain = operator.gain(first, last)
            span = SlotSpan(slot.number, place, *time.span(slot), len(slot.trials), gain, slot.ended is None)
            spans.append(span)
    spans.sort(key=lambda span: span.number)
    searched = sum(slot.search_seconds for slot in history.slots.values())
    trials = [trial for operator in history.operators.values() for trial in operator.trials]
    ran = _covered([(trial.done_at - trial.run_seconds, trial.done_at) for trial in trials])
    measured = _covered([(span.start, span.end) for span in spans]) + time.defaults_end - time.defaults_start
    return Course(
        time=time,
        curve=_curve(stored, time),
        spans=spans,
        defaults_end=time.defaults_end,
        search_seconds=searched,
        run_seconds=ran,
        build_seconds=max(0.0, measured - searched - ran),
    )


def _curve(stored: StoredHistory, time: SessionTime) -> list[tuple[float, float, int]]:
    """From the default programs on; programs of earlier sessions may be faster than these at once."""
    history = stored.history
    places = {key: place for place, key in enumerate(history.operators)}
    curve: list[tuple[float, float, int]] = []
    latest = 0.0
    for trial, latency in history.steps:
        default = history.slots[trial.slot].default
        # Times never go back; trials of one slot may end in any order.
        latest = max(latest, time.defaults_end, 0.0 if default else time.of(trial))
        curve.append((latest, latency, -1 if default else places[trial.operator]))
    if not curve or not math.isfinite(history.start_latency):
        return []
    start = history.start_latency
    if not math.isclose(curve[0][1], start):
        curve.insert(0, (curve[0][0], start, -1))
    return curve


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds that at least one of the spans covers."""
    covered, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
