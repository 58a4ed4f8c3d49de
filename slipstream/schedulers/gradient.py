"""Ansor's gradient scheduler, to compare with (Zheng et al. 2020, section 6; DynaTune's appendix C)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slipstream.schedulers.eligible import fewest_slots, highest, unfinished, without_measurement
from slipstream.schedulers.types import OperatorState, SchedulerError


class Gradient:
    """Picks where the model's latency is expected to fall fastest.

    With g the best seconds per call and n the slots so far, the fall to expect is
    `weight * (alpha * past + (1 - alpha) * future)`: `past` is the mean fall over the last `window` slots, `future`
    the larger of g / n (as if all time so far had gone into what is left) and g - beta * flops / (the best FLOP/s
    of a similar operator). Every operator has a first slot before any is compared.
    """

    def __init__(self, *, alpha: float = 0.2, beta: float = 2.0, window: int = 3) -> None:
        if window < 1:
            raise SchedulerError(f"window is at least one slot, not {window}")
        self.alpha, self.beta, self.window = alpha, beta, window

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        candidates = unfinished(operators)
        if not candidates:
            return None
        first = [o for o in candidates if not o.slots] or without_measurement(candidates)
        if first:
            return fewest_slots(first).key
        speeds = {o.key: o.flops / o.best for o in operators if math.isfinite(o.best) and o.best > 0}
        return highest(candidates, lambda operator: self.fall(operator, speeds)).key

    def fall(self, operator: OperatorState, speeds: Mapping[str, float]) -> float:
        """Seconds by which the model's latency should fall in one more slot; `speeds` is FLOP/s by operator."""
        future = operator.best / operator.slots
        group = [speeds[key] for key in operator.similar if speeds.get(key)]
        if group:
            fastest = max(*group, speeds.get(operator.key, 0.0))
            future = max(future, operator.best - self.beta * operator.flops / fastest)
        return operator.weight * (self.alpha * self._past(operator) + (1 - self.alpha) * future)

    def _past(self, operator: OperatorState) -> float:
        """Mean fall per slot over the window; nothing while it is not full, or reaches back to before anything ran."""
        if operator.slots <= self.window:
            return 0.0
        then = operator.history[operator.slot_ends[-1 - self.window]]
        return (then - operator.best) / self.window if math.isfinite(then) else 0.0
