"""DynaTune exactly as published (section 4), bound and belief, to compare with our version in `ucb.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.belief.published import Prediction, PublishedBelief
from slipstream.schedulers.eligible import fewest_slots, highest, unfinished, without_measurement
from slipstream.schedulers.types import OperatorState

_MILLISECONDS = 1e3
_C, _C_UNDER_A_MILLISECOND = 2.0, 0.2


class DynatunePaper:
    """`gain + sqrt(C ln t / slots)` with C = 2, or 0.2 for models under 1 ms; every operator gets a first slot.

    The paper does not name the unit of the gain. Milliseconds fit its constants: a bonus of about one would exceed
    any gain in seconds. Similar operators are not used. `curve` is one of the paper's five families.
    """

    def __init__(self, *, seed: int, slot_trials: int, peak_flops: float, curve: str = "log_power") -> None:
        self.belief = PublishedBelief(peak_flops=peak_flops, slot_trials=slot_trials, seed=seed, curve=curve)
        self._predicted: dict[str, tuple[tuple[float, ...], Prediction]] = {}

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        candidates = unfinished(operators)
        if not candidates:
            return None
        # Warm-up until every operator has a valid program, then gamma: no bound is above that of an untried operator.
        if first := without_measurement(candidates) or [o for o in candidates if not o.slots]:
            return fewest_slots(first).key
        initial = sum(o.weight * o.history[0] for o in operators)
        c = _C if initial * _MILLISECONDS >= 1 else _C_UNDER_A_MILLISECOND
        return highest(
            candidates, lambda o: _MILLISECONDS * self.gain(o) + math.sqrt(c * math.log(slot + 1) / o.slots)
        ).key

    def gain(self, operator: OperatorState) -> float:
        """Seconds that its next slot should take off the model: weight (flop/best - flop/y)."""
        history = tuple(operator.history)
        known = self._predicted.get(operator.key)
        if known is None or known[0] != history:
            known = history, self.belief.predict(operator.key, history, operator.flops)
            self._predicted[operator.key] = known
        return operator.latency * known[1].latency_reduction
