"""A policy with the curves of other runs of the same operators: a limit for forecasts on this run.

It is given the gains and times of the same operators in runs with other seeds. At which trial *this* run finds its good
programs is random, and only the oracle has that information.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from slipstream.schedulers.eligible import unfinished
from slipstream.schedulers.replay import RecordedCurve
from slipstream.schedulers.types import OperatorState


class Informed:
    """Follows the steepest mean fall, over any number of slots, that other runs had from here on."""

    def __init__(self, others: Sequence[Sequence[RecordedCurve]], slot_trials: int) -> None:
        self.slot_trials = slot_trials
        self._others: dict[str, list[RecordedCurve]] = {}
        for curves in others:
            for curve in curves:
                self._others.setdefault(curve.key, []).append(curve)
        self._slopes: dict[tuple[str, int], float] = {}

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        candidates = unfinished(operators)
        return max(candidates, key=self._promise).key if candidates else None

    def _promise(self, operator: OperatorState) -> tuple[float, float]:
        """Where no other run gained anything more, the slots go by latency."""
        at = (operator.key, operator.trials)
        if at not in self._slopes:
            self._slopes[at] = self._steepest(operator)
        return operator.latency * self._slopes[at], operator.latency / (operator.slots + 1)

    def _steepest(self, operator: OperatorState) -> float:
        start, steepest = operator.trials, 0.0
        others = [curve for curve in self._others.get(operator.key, ()) if curve.trials > start]
        for end in range(start + self.slot_trials, max((c.trials for c in others), default=0) + 1, self.slot_trials):
            then = [min(end, curve.trials) for curve in others]
            cut = fmean(max(0.0, 1 - c.best[t] / operator.best) for c, t in zip(others, then, strict=True))
            seconds = fmean(c.seconds[t] - c.seconds[start] for c, t in zip(others, then, strict=True))
            if cut > 0:
                steepest = max(steepest, cut / seconds if seconds > 0 else math.inf)
        return steepest
