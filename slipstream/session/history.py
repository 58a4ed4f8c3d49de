"""What has happened in a session so far: its slots and trials, and how fast each operator was after each of them.

There is one way to count: the loop adds slots and trials as they come, `stored_history.py` adds the same out of a
store, and the terminal, `status`, the report and the benchmarks read the result. Neither NumPy nor TVM is needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate

from slipstream.session.events import OperatorProgress
from slipstream.store.records import TrialRecord

# Failures that say nothing about the program: it may be measured again.
INCONCLUSIVE_FAILURES = frozenset({"device lost"})
# Failures after which another program of the same operator may well work.
FAILURES_OF_THE_PROGRAM = frozenset({"wrong result", "run error"})
_RECENT = 12
_MOST_LOST_SLOTS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement: `seconds` per call, infinite for a failure; it cost `spent` and was over at `done_at`."""

    operator: str
    slot: int
    position: int
    seconds: float
    failure: str | None = None
    message: str = ""
    origin: str = ""
    program: int = 0  # the store's row
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    spent: float = 0.0
    done_at: float = 0.0

    @classmethod
    def of(cls, record: TrialRecord) -> Trial:
        """A trial of a session's slot as the store's record has it."""
        assert record.slot is not None
        spent = record.build_seconds + record.run_seconds + record.overhead_seconds
        return cls(
            record.operator,
            record.slot,
            record.position or 0,
            record.median,
            record.failure,
            record.message,
            record.program.origin,
            build_seconds=record.build_seconds,
            run_seconds=record.run_seconds,
            spent=spent,
            done_at=record.measured_at + spent,
        )

    @property
    def is_inconclusive(self) -> bool:
        """Whether it failed for a reason that says nothing about the program."""
        return self.failure in INCONCLUSIVE_FAILURES


def count_answered(trials: Iterable[TrialRecord]) -> int:
    """How many of a session's trials a device answered: those that a budget counts."""
    return sum(trial.failure not in INCONCLUSIVE_FAILURES for trial in trials)


@dataclass(slots=True)
class Slot:
    """A slot. `ended` is the session's time at its end; `lost` says how the search crashed, if it did.

    A `default` slot measures an operator's default program and those known from earlier sessions. It is not given by
    the scheduler and not counted among the slots.
    """

    number: int
    operator: str
    default: bool = False
    search_seconds: float = 0.0
    lost: str = ""
    ended: float | None = None
    trials: list[Trial] = field(default_factory=list)
    counted: int = 0  # trials that are points of the operator's curve


@dataclass
class OperatorHistory:
    """One operator. `best_after[n]` are the seconds of its best program after n trials beyond the default program's.

    An inconclusive trial is no point of that curve. `exhausted`: there is nothing to try any more.
    """

    key: str
    name: str
    weight: int
    flops: int
    kinds: tuple[str, ...] = ()
    bytes: int = 0
    best_after: list[float] = field(default_factory=lambda: [math.inf])
    trials: list[Trial] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    fastest: Trial | None = None
    seconds: float = 0.0
    exhausted: bool = False
    has_default: bool = False  # whether its default program was measured, or never can be
    version: int = 0  # changes with everything else
    row: OperatorProgress = field(init=False)

    def __post_init__(self) -> None:
        self.row = OperatorProgress(self.key, self.name, self.weight, math.inf, math.inf)

    @property
    def best(self) -> float:
        return self.best_after[-1]

    @property
    def start(self) -> float:
        """Seconds of the default program; infinite while unknown, or if it does not work."""
        return self.best_after[0]

    @property
    def latency(self) -> float:
        """Its share of one run of the model, in seconds."""
        return self.weight * self.best

    @property
    def lacks_default(self) -> bool:
        """Whether measuring its default program was inconclusive and has to be done again."""
        return not self.has_default and any(slot.default and slot.ended is not None for slot in self.slots)

    def spans(self) -> list[tuple[Slot, int, int]]:
        """Its slots, those of default programs apart, with the points of the curve at which they began and ended."""
        ends = list(accumulate((slot.counted for slot in self.slots), initial=0))
        pairs = zip(self.slots, ends, ends[1:], strict=False)
        return [(slot, start, end) for slot, start, end in pairs if not slot.default]

    @property
    def slot_ends(self) -> tuple[int, ...]:
        return tuple(end for slot, _, end in self.spans() if slot.ended is not None)

    def gain(self, start: int, end: int) -> float:
        """Seconds that were taken off one run of the model between two points of the curve."""
        gain = self.weight * (self.best_after[start] - self.best_after[end])
        return gain if math.isfinite(gain) else 0.0

    def is_finished(self, patience_trials: int, most_trials: int | None) -> bool:
        """Whether it is to be tuned no more: exhausted, tried often enough, or long without an improvement."""
        count = len(self.best_after) - 1
        patient = count < patience_trials or self.best < self.best_after[-1 - patience_trials]
        return self.exhausted or not patient or (most_trials is not None and count >= most_trials)

    def add(self, trial: Trial, slot: Slot) -> bool:
        """Count a trial; True if it is the fastest so far."""
        self.trials.append(trial)
        slot.trials.append(trial)
        self.seconds += trial.spent
        improved = trial.seconds < (self.fastest.seconds if self.fastest else math.inf)
        if improved:
            self.fastest = trial
        if slot.default and trial.position == 0:
            if not trial.is_inconclusive:
                self.has_default = True
                self.row.start = trial.seconds
                self.best_after = [trial.seconds, *(min(best, trial.seconds) for best in self.best_after[1:])]
        elif not trial.is_inconclusive:
            self.best_after.append(min(self.best, trial.seconds))
            slot.counted += 1
        self.row.best = self.best
        self.row.trials += 1
        self.row.failures += trial.failure is not None
        self.version += 1
        return improved

    def end(self, slot: Slot, elapsed: float, *, exhausted: bool) -> None:
        slot.ended = elapsed
        last = [s for s in self.slots if not s.default][-_MOST_LOST_SLOTS:]
        crashes = len(last) == _MOST_LOST_SLOTS and all(s.lost for s in last)
        self.exhausted = self.exhausted or exhausted or crashes
        self.has_default = self.has_default or (slot.default and exhausted)
        self.version += 1

    def update_row(self, patience_trials: int, most_trials: int | None) -> None:
        """Bring what the row says about slots, and whether it is finished, up to date."""
        ends = self.slot_ends
        self.row.slots = len(ends)
        self.row.recent = [self.best_after[end] for end in ends[-_RECENT:]]
        self.row.finished = self.is_finished(patience_trials, most_trials)


class History:
    """All operators, slots and trials of a session.

    `latency` is the sum over the operators that work, infinite until every operator's default program was measured;
    `steps` are the trials that changed it from then on, each with the new one. `given_slots` are those that a scheduler
    gave, open and lost ones included; `default_trials` were measured beside them.
    """

    def __init__(self, operators: Iterable[OperatorHistory] = ()) -> None:
        self.operators = {operator.key: operator for operator in operators}
        self.slots: dict[int, Slot] = {}
        self.given_slots = 0
        self.trials = 0
        self.default_trials = 0
        self.failures: Counter[str] = Counter()
        self.steps: list[tuple[Trial, float]] = []
        self.latency = math.inf
        self._without_default = set(self.operators)
        self._latencies = dict.fromkeys(self.operators, 0.0)  # of those that work

    @property
    def answered(self) -> int:
        """See `count_answered`."""
        return self.trials - sum(self.failures[kind] for kind in INCONCLUSIVE_FAILURES)

    @property
    def start_latency(self) -> float:
        """The same sum with default programs."""
        starts = (operator.weight * operator.start for operator in self.operators.values())
        return self._sum([start for start in starts if math.isfinite(start)])

    def begin(self, slot: Slot) -> None:
        operator = self.operators[slot.operator]
        self.slots[slot.number] = slot
        self.given_slots += not slot.default
        operator.slots.append(slot)
        operator.seconds += slot.search_seconds
        operator.version += 1

    def add(self, trial: Trial) -> bool:
        """Count a trial of a slot that has begun; True if it is the fastest of its operator."""
        slot, operator = self.slots[trial.slot], self.operators[trial.operator]
        self.trials += 1
        self.default_trials += slot.default
        if trial.failure is not None:
            self.failures[trial.failure] += 1
        improved = operator.add(trial, slot)
        if improved:
            self._latencies[operator.key] = operator.latency
        if self._has_default(operator) or improved:
            before, self.latency = self.latency, self._sum(self._latencies.values())
            if self.latency != before:
                self.steps.append((trial, self.latency))
        return improved

    def end(self, number: int, elapsed: float, *, exhausted: bool = False) -> None:
        """Close a slot; `exhausted`: its operator has nothing left to try, or cannot be measured."""
        slot = self.slots[number]
        operator = self.operators[slot.operator]
        operator.end(slot, elapsed, exhausted=exhausted)
        if self._has_default(operator):
            self.latency = self._sum(self._latencies.values())

    def by_slots(self) -> Iterator[tuple[float, History]]:
        """The history grown slot by slot, in the order in which they ended, with the session's time of each end."""
        grown = History(OperatorHistory(o.key, o.name, o.weight, o.flops) for o in self.operators.values())
        ended = [slot for slot in self.slots.values() if slot.ended is not None]
        for slot in sorted(ended, key=lambda slot: slot.ended or 0.0):
            grown.begin(replace(slot, ended=None, trials=[], counted=0))
            for trial in slot.trials:
                grown.add(trial)
            grown.end(slot.number, slot.ended or 0.0)
            yield slot.ended or 0.0, grown

    def _has_default(self, operator: OperatorHistory) -> bool:
        """Whether the operator's default program has just become known."""
        new = operator.has_default and operator.key in self._without_default
        if new:
            self._without_default.remove(operator.key)
        return new

    def _sum(self, latencies: Collection[float]) -> float:
        return math.inf if self._without_default else sum(latencies) or math.inf
