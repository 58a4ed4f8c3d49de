"""What a session tells those who watch it: an event for each thing that happens, and a snapshot of the whole.

A view draws the snapshot and needs no memory of its own; a machine reads the events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class OperatorProgress:
    """One row of the operators' table. Times are seconds per call; infinite if nothing has worked yet."""

    key: str
    name: str
    weight: int
    start: float
    best: float
    trials: int = 0
    slots: int = 0
    failures: int = 0
    finished: bool = False
    recent: list[float] = field(default_factory=list)  # best at the end of its last slots, oldest first


@dataclass
class Remaining:
    """What is left of the budget. None: that kind of budget was not set."""

    seconds: float | None = None
    trials: int | None = None
    until_latency: float | None = None
    until_gain_below: float | None = None
    fraction_used: float | None = None  # 0 to 1; None if there is no telling


@dataclass(frozen=True)
class Left:
    """What more tuning would bring until nothing improves any more: shares of the present latency, and the time."""

    expected: float
    at_most: float  # in nine cases of ten
    seconds: float

    def __str__(self) -> str:
        return self.described()

    def described(self, digits: int | None = None) -> str:
        """In words; the share with so many digits behind the point, if that is given."""
        if not self.at_most:
            return "nothing more is likely"
        return f"at most {percent(self.at_most, digits)} more is likely, another {_time(self.seconds)}"


def percent(share: float, digits: int | None = None) -> str:
    """`4 %`, `0.4 %`: with one digit behind the point below one, unless so many `digits` are asked for."""
    value = 100 * share
    if digits is not None:
        return f"{value:.{digits}f} %"
    return f"{value:.0f} %" if value >= 0.95 else f"{max(value, 0.1):.1f} %"


def _time(seconds: float) -> str:
    for unit, length in (("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 1.5 * length:
            return _count(round(seconds / length), unit)
    return _count(max(1, round(seconds)), "second")


@dataclass
class Snapshot:
    """The state of a session. Latencies are sums over operators of weight x seconds per call, over all shapes and, each
    as often as it counts, over all models."""

    session: str
    model: str
    target: str
    phase: str  # one of PHASES
    elapsed: float
    remaining: Remaining
    start_latency: float
    latency: float
    curve: list[tuple[float, float]]  # (elapsed seconds, latency) whenever latency changed
    operators: list[OperatorProgress]
    slots: int = 0  # that the scheduler gave
    trials: int = 0
    default_trials: int = 0  # of these, measured apart from the slots: default programs and those of earlier sessions
    current: str | None = None  # key of the operator that has the slot
    doing: str = ""  # what is going on inside the phase, for people: "timing 12 of 32"
    failures: dict[str, int] = field(default_factory=dict)  # by kind
    split: dict[str, float] = field(default_factory=dict)  # seconds spent by activity: search, build, run, ...
    left: Left | None = None  # None while there is no estimate
    fallback: str = ""  # why the compiled model has the default programs; empty if it has the tuned ones
    whole_gain: float | None = None  # how many times as fast as untuned the whole model is, where that is known
    calls: dict[str, dict[str, int]] = field(default_factory=dict)  # of operators by shape; of one shape: nothing
    weights: dict[str, int] = field(default_factory=dict)  # by the same labels, of several models; of one: nothing


PHASES = ("prepare", "defaults", "tune", "settle", "compile", "verify", "done")


def trials_and_slots(snapshot: Snapshot) -> str:
    """How much was done, in the words of all views: 28 trials, 3 slots, 7 defaults."""
    counts = [_count(snapshot.trials, "trial"), _count(snapshot.slots, "slot")]
    counts += [_count(snapshot.default_trials, "default")] if snapshot.default_trials else []
    return ", ".join(counts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True)
class Event:
    """Something happened at `elapsed` seconds. `kind` names it, `data` is JSON: see docs/tuning.md for each kind."""

    kind: str  # "started", "phase", "slot", "trial", "slot_done", "improved", "message", "finished"
    elapsed: float
    data: dict[str, object] = field(default_factory=dict)


Watcher = Callable[[Event, Snapshot], None]


def tell(watcher: Watcher, kind: str, snapshot: Snapshot, **data: object) -> None:
    """That something happened just now."""
    watcher(Event(kind, snapshot.elapsed, data), snapshot)
