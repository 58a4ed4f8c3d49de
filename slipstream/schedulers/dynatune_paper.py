"""DynaTune's upper confidence bound exactly as published (section 4.2), to compare with our version in `ucb.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.belief import Belief
from slipstream.schedulers.eligible import fewest_slots, highest, unfinished, without_measurement
from slipstream.schedulers.gains import Gains
from slipstream.schedulers.types import OperatorState

_MILLISECONDS = 1e3
_C, _C_UNDER_A_MILLISECOND = 2.0, 0.2


class DynatunePaper:
    """`gain + sqrt(C ln t / slots)` with C = 2, or 0.2 for models under 1 ms; every operator gets a first slot.

    The paper does not name the unit of the gain. Milliseconds fit its constants: a bonus of about one would exceed
    any gain in seconds. Similar operators are not used.
    """

    def __init__(self, *, seed: int, slot_trials: int, peak_flops: float) -> None:
        belief = Belief(peak_flops=peak_flops, slot_trials=slot_trials, seed=seed)
        self.gains = Gains(belief, count_followers=False, share_curves=False, heed_potential=False)

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        candidates = unfinished(operators)
        if not candidates:
            return None
        if first := without_measurement(candidates) or [o for o in candidates if not o.slots]:
            return fewest_slots(first).key
        initial = sum(o.weight * o.history[0] for o in operators)
        c = _C if initial * _MILLISECONDS >= 1 else _C_UNDER_A_MILLISECOND
        gains = {o.key: g for o, g in zip(candidates, self.gains.gains(candidates, operators), strict=True)}
        return highest(
            candidates, lambda o: _MILLISECONDS * gains[o.key] + math.sqrt(c * math.log(slot + 1) / o.slots)
        ).key
