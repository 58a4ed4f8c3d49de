"""The oracle policy: reads the rest of recorded curves, as an upper limit for the other policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slipstream.schedulers.eligible import highest, unfinished
from slipstream.schedulers.types import OperatorState

if TYPE_CHECKING:
    from slipstream.schedulers.replay import RecordedCurve


class Oracle:
    """Picks the operator whose latency will fall fastest per second of tuning, looking any number of slots ahead.

    Looking one slot ahead, as the paper's regret does, would stop at every flat stretch. The best mean slope to any
    later point is the slope of the curve's lower convex hull, and following the steepest hull is what an optimal
    schedule does up to the last step it takes.
    """

    def __init__(self, *, slot_trials: int, curves: Sequence[RecordedCurve]) -> None:
        self.slot_trials = slot_trials
        self.curves = {curve.key: curve for curve in curves}
        self._slopes: dict[tuple[str, int], float] = {}

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        candidates = unfinished(operators)
        return highest(candidates, self._slope).key if candidates else None

    def _slope(self, operator: OperatorState) -> float:
        at = (operator.key, operator.trials)
        if at not in self._slopes:
            self._slopes[at] = self._steepest(self.curves[operator.key], operator)
        return self._slopes[at]

    def _steepest(self, curve: RecordedCurve, operator: OperatorState) -> float:
        start = operator.trials
        ends = [*range(start + self.slot_trials, curve.trials, self.slot_trials), curve.trials]
        steepest = 0.0
        for end in ends:
            fall = operator.weight * (operator.best - curve.best[end])
            seconds = curve.seconds[end] - curve.seconds[start]
            if fall > 0:
                steepest = max(steepest, fall / seconds if seconds > 0 else math.inf)
        return steepest
