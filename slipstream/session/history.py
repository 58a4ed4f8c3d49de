"""How far each operator has come: built from trials as they are measured, or as the store gives them back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slipstream.schedulers.finish import is_finished
from slipstream.schedulers.types import OperatorState
from slipstream.session.events import OperatorProgress
from slipstream.store.records import TrialRecord

_RECENT = 12


@dataclass
class Track:
    """One operator. Its first trial is that of the default program, which is what `history` starts with."""

    key: str
    name: str
    weight: int
    flops: int
    similar: Sequence[str] = ()
    history: list[float] = field(default_factory=lambda: [math.inf])
    slot_ends: list[int] = field(default_factory=list)
    seconds: float = 0.0
    exhausted: bool = False
    best: TrialRecord | None = None
    row: OperatorProgress = field(init=False)
    _state: OperatorState | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.row = OperatorProgress(self.key, self.name, self.weight, math.inf, math.inf)

    @property
    def latency(self) -> float:
        return self.weight * self.history[-1]

    def add(self, trial: TrialRecord, *, default: bool) -> bool:
        """Take a trial in; True if it is the best so far."""
        self.seconds += trial.build_seconds + trial.run_seconds + trial.overhead_seconds
        improved = trial.median < (self.best.median if self.best else math.inf)
        if improved:
            self.best = trial
        if default:
            self.row.start = trial.median
            self.history = [trial.median, *(min(best, trial.median) for best in self.history[1:])]
        else:
            self.history.append(min(self.history[-1], trial.median))
        self.row.best = self.history[-1]
        self.row.trials += 1
        self.row.failures += trial.failure is not None
        self._state = None
        return improved

    def end_slot(self, *, exhausted: bool) -> None:
        self.slot_ends.append(len(self.history) - 1)
        self.exhausted = self.exhausted or exhausted
        self.row.slots += 1
        self.row.recent = [*self.row.recent, self.history[-1]][-_RECENT:]
        self._state = None

    def spend(self, seconds: float) -> None:
        """Time this operator took besides its trials."""
        self.seconds += seconds
        self._state = None

    def state(self, patience_trials: int, most_trials: int | None = None) -> OperatorState:
        """What a scheduler sees; made anew only when something has changed."""
        if self._state is None:
            state = OperatorState(
                self.key,
                self.weight,
                self.flops,
                tuple(self.history),
                tuple(self.slot_ends),
                self.seconds,
                self.exhausted,
                self.similar,
            )
            enough = most_trials is not None and state.trials >= most_trials
            if not state.finished and (enough or is_finished(state, patience_trials)):
                state = replace(state, finished=True)
            self._state = state
            self.row.finished = state.finished
        return self._state


@dataclass
class Tracks:
    """All operators of a session."""

    by_key: dict[str, Track]
    failures: Counter[str] = field(default_factory=Counter)
    trials: int = 0

    def add(self, trial: TrialRecord, *, default: bool) -> bool:
        self.trials += 1
        if trial.failure is not None:
            self.failures[trial.failure] += 1
        return self.by_key[trial.operator].add(trial, default=default)

    @property
    def latency(self) -> float:
        """Seconds of one run of the model: the sum over the operators that can be measured, each at its best."""
        return _sum_of_finite(track.latency for track in self.by_key.values())

    @property
    def start_latency(self) -> float:
        return _sum_of_finite(track.weight * track.history[0] for track in self.by_key.values())


def _sum_of_finite(latencies: Iterable[float]) -> float:
    """Infinite if none is known."""
    known = [latency for latency in latencies if math.isfinite(latency)]
    return sum(known) if known else math.inf


def make_tracks(
    weights: Mapping[str, int], names: Mapping[str, str], flops: Mapping[str, int], groups: Mapping[str, Sequence[str]]
) -> Tracks:
    """Tracks of operators nothing is known about yet."""
    return Tracks(
        {key: Track(key, names[key], weight, flops[key], groups.get(key, ())) for key, weight in weights.items()}
    )
