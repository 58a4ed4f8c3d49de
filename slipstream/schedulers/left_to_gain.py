"""What more tuning would bring: the gain still to be expected of all operators together, and how many trials it takes.

Each operator goes on until it has had `patience_trials` without an improvement. Its belief, which is bounded by the
target's peak, says what those trials bring at its own pace; the sum over the operators is the model's.

An operator that improves gets more trials than that, and the errors of one model's forecasts go in one direction, so
the sum is too low more often than too high. `MARGIN` is what it has to be multiplied by to be an upper bound nine times
out of ten, from recorded curves: see docs/everyday.md and `python -m benchmarks.left_to_gain`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.belief import Belief
from slipstream.schedulers.types import OperatorState

MARGIN = 3.5
# Patience may be endless, but a forecast beyond twice the trials of an operator says nothing.
_FARTHEST = 64


@dataclass(frozen=True)
class LeftToGain:
    """Shares of the model's present latency: `expected`, and `at_most` in nine cases of ten, with `trials` more."""

    expected: float
    at_most: float
    trials: int


class LeftToGainEstimate:
    """Estimates what is left; an operator's part is worked out again only when its history has changed."""

    def __init__(self, belief: Belief, patience_trials: int, most_trials: int | None = None) -> None:
        self._belief, self._patience, self._most = belief, patience_trials, most_trials
        self._known: dict[str, tuple[int, float, float]] = {}

    def estimate(self, operators: Sequence[OperatorState]) -> LeftToGain | None:
        """None while an operator has no valid program, or nothing takes any time."""
        latency = sum(operator.latency for operator in operators)
        if not 0 < latency < math.inf:
            return None
        unfinished = [operator for operator in operators if not operator.finished]
        expected = sum(operator.latency * self._reduction(operator) for operator in unfinished) / latency
        largest = sum(operator.latency for operator in unfinished) / latency
        trials = sum(self.trials_left(operator) for operator in unfinished)
        return LeftToGain(expected, min(MARGIN * expected, largest), trials)

    def trials_left(self, operator: OperatorState) -> int:
        """How many it is going to have if none of them improves it."""
        history = operator.history
        idle = 0
        while idle < operator.trials and history[-2 - idle] <= operator.best:
            idle += 1
        left = min(self._patience - idle, max(_FARTHEST, operator.trials))
        if self._most is not None:
            left = min(left, self._most - operator.trials)
        return max(left, 1)

    def _reduction(self, operator: OperatorState) -> float:
        """The expected share by which its latency will fall."""
        length, best, reduction = self._known.get(operator.key, (-1, 0.0, 0.0))
        if (length, best) != (len(operator.history), operator.best):
            ahead = self._belief.outlook(operator.key, operator.history, operator.flops, self.trials_left(operator))
            reduction = 1 - float(ahead.mean())
            self._known[operator.key] = len(operator.history), operator.best, reduction
        return reduction
