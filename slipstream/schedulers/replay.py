"""Replaying a scheduler over recorded tuning curves, on a simulated clock.

All policies run on the same recorded results, so they can be compared within seconds and over many seeds. An operator's
curve advances only when it has a slot, so replay is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from slipstream.errors import SlipstreamError
from slipstream.schedulers.finish import PATIENCE_TRIALS, is_finished
from slipstream.schedulers.types import OperatorState, Scheduler


class CurveError(SlipstreamError):
    """A recorded curve is empty, out of order or does not fit the others."""


@dataclass(frozen=True)
class RecordedCurve:
    """How tuning one operator went: after i trials, `seconds[i]` of tuning and the best program at `best[i]`."""

    key: str
    weight: int
    flops: int
    seconds: list[float]
    best: list[float]
    similar: tuple[str, ...] = ()

    @property
    def trials(self) -> int:
        return len(self.best) - 1

    @staticmethod
    def from_points(
        key: str,
        weight: int,
        flops: int,
        trial: ArrayLike,
        seconds: ArrayLike,
        best: ArrayLike,
        similar: Sequence[str] = (),
    ) -> RecordedCurve:
        """From points at some trials: the best holds until the next point, tuning time is linear between them.

        Trials before the first point have no valid measurement; a point at trial 0 is the default program.
        """
        at, spent, value = (np.asarray(column, dtype=float) for column in (trial, seconds, best))
        if not (at.ndim == 1 and at.size and at.shape == spent.shape == value.shape):
            raise CurveError(f"curve of {key}: trial, seconds and best must be lists of one length, not empty")
        if at[0] < 0 or np.any(np.diff(at) <= 0) or np.any(np.diff(spent) < 0):
            raise CurveError(f"curve of {key}: trials must rise, and seconds must not fall")
        every = np.arange(int(at[-1]) + 1)
        lowest = np.minimum.accumulate(np.where(np.isnan(value), math.inf, value))
        held = np.concatenate([[math.inf], lowest])[np.searchsorted(at, every, side="right")]
        clock = np.interp(every, np.concatenate([[0.0], at[at > 0]]), np.concatenate([[0.0], spent[at > 0]]))
        return RecordedCurve(key, weight, flops, clock.tolist(), held.tolist(), tuple(similar))


@dataclass(frozen=True)
class Replay:
    """The course of a policy on a set of curves: at `times[i]`, after i slots, the model takes `latency[i]` seconds.

    `choices[i]` had slot i, and `regret[i]` is what the best choice for slot i, known in hindsight, would have cut
    off the latency beyond that (DynaTune, section 4.1). `lowest` is the latency at the end of all curves.
    Latency is infinite, and the regret not counted, until each operator has a valid program.
    """

    times: list[float]
    latency: list[float]
    choices: list[str]
    regret: list[float]
    lowest: float

    @property
    def cumulative_regret(self) -> float:
        return sum(self.regret)

    def time_to_within(self, fraction: float) -> float:
        """Tuning seconds until the latency was at most `fraction` above the lowest; infinite if it never was."""
        limit = (1 + fraction) * self.lowest
        return next((t for t, value in zip(self.times, self.latency, strict=True) if value <= limit), math.inf)

    @property
    def mean_excess(self) -> float:
        """Mean over the tuning time of the logarithm of latency to the lowest, from when there is a latency."""
        spent, excess = 0.0, 0.0
        for start, end, latency in zip(self.times, self.times[1:], self.latency, strict=False):
            if math.isfinite(latency):
                spent += end - start
                excess += (end - start) * math.log(latency / self.lowest)
        return excess / spent if spent else 0.0

    def latency_at(self, seconds: float) -> float:
        """The model's latency after that much tuning, counting only slots that had ended."""
        return self.latency[int(np.searchsorted(self.times, seconds, side="right")) - 1]


def replay(
    scheduler: Scheduler,
    curves: Sequence[RecordedCurve],
    slot_trials: int,
    *,
    patience_trials: int = PATIENCE_TRIALS,
    max_slots: int | None = None,
) -> Replay:
    """Give out slots until all operators are finished (no improvement for long, or the curve is at its end)."""
    tracks = [_Track(curve, slot_trials, patience_trials) for curve in curves]
    by_key = {track.curve.key: i for i, track in enumerate(tracks)}
    if len(by_key) < len(tracks):
        raise CurveError("two curves have the same key; give each operator one curve")
    states = [track.state() for track in tracks]
    gains = [track.next_gain() for track in tracks]
    times, latency = [0.0], [_total(states)]
    choices: list[str] = []
    regret: list[float] = []
    while max_slots is None or len(choices) < max_slots:
        key = scheduler.pick(states, len(choices))
        if key is None:
            break
        i = by_key[key]
        regret.append(max(gains) - gains[i] if math.isfinite(latency[-1]) else 0.0)
        seconds = tracks[i].advance()
        states[i], gains[i] = tracks[i].state(), tracks[i].next_gain()
        choices.append(key)
        times.append(times[-1] + seconds)
        latency.append(_total(states))
    lowest = sum(curve.weight * curve.best[-1] for curve in curves)
    return Replay(times, latency, choices, regret, lowest)


@dataclass
class _Track:
    """One operator's place on its curve."""

    curve: RecordedCurve
    slot_trials: int
    patience: int
    trials: int = 0
    slot_ends: list[int] = field(default_factory=list)

    def advance(self) -> float:
        before = self.curve.seconds[self.trials]
        self.trials = min(self.trials + self.slot_trials, self.curve.trials)
        self.slot_ends.append(self.trials)
        return self.curve.seconds[self.trials] - before

    def next_gain(self) -> float:
        """Seconds the next slot will cut off the model's latency."""
        then = min(self.trials + self.slot_trials, self.curve.trials)
        now, later = self.curve.best[self.trials], self.curve.best[then]
        return self.curve.weight * (now - later) if math.isfinite(now) else 0.0

    def state(self) -> OperatorState:
        curve, trials = self.curve, self.trials
        state = OperatorState(
            curve.key,
            curve.weight,
            curve.flops,
            curve.best[: trials + 1],
            tuple(self.slot_ends),
            curve.seconds[trials],
            finished=trials >= curve.trials,
            similar=curve.similar,
        )
        return replace(state, finished=True) if is_finished(state, self.patience) else state


def _total(states: Sequence[OperatorState]) -> float:
    return sum(state.latency for state in states)
