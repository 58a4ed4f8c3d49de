"""DynaTune's policy: the upper confidence bound of the gain (section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.belief import Belief
from slipstream.schedulers.eligible import fewest_slots, highest, unfinished, warming_up
from slipstream.schedulers.gains import Gains
from slipstream.schedulers.types import OperatorState, SchedulerError


class UCB:
    """Picks the operator with the highest `gain + latency * sqrt(c * ln t / slots)`.

    Units. The paper adds seconds (the gain) to a pure number (the bonus), so its schedule depends on the unit of
    latency, and it needs another constant for models under a millisecond. Here both are shares of the model's
    latency. Hoeffding's bound, where the bonus comes from, is proportional to the range of the reward, and a slot
    cannot take more off the model than the operator's own latency: so the bonus is scaled by that share.
    The schedule is then the same in seconds and in milliseconds, and a light operator is not explored as if it
    could save the whole model. With rewards in these units `c` is far below the paper's 2: a slot brings a few
    per cent of the operator's latency, not all of it.

    While nothing but an operator's default program is known, its gain is all it can reach: the paper's large
    constant gamma, made as tight as it can be.
    """

    def __init__(
        self,
        *,
        seed: int,
        slot_trials: int,
        peak_flops: float,
        c: float = 0.01,
        curve: str = "log_power",
        sampler: str = "importance",
        count_followers: bool = True,
        share_curves: bool = True,
    ) -> None:
        if not c >= 0:
            raise SchedulerError(f"c, the weight of exploration, is 0 or more, not {c}")
        self.c = c
        belief = Belief(peak_flops=peak_flops, slot_trials=slot_trials, seed=seed, curve=curve, sampler=sampler)
        self.gains = Gains(belief, count_followers=count_followers, share_curves=share_curves)

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        candidates = unfinished(operators)
        if not candidates:
            return None
        if cold := warming_up(candidates):
            return fewest_slots(cold).key
        bounds = self.bounds(candidates, operators, slot)
        return highest(candidates, lambda operator: bounds[operator.key]).key

    def bounds(
        self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState], slot: int
    ) -> dict[str, float]:
        """The upper confidence bound of each candidate's gain, as a share of the model's latency."""
        latency = sum(operator.latency for operator in operators if math.isfinite(operator.latency)) or 1.0
        gains = self.gains.gains(candidates, operators)
        return {
            operator.key: (gain + operator.latency * self._doubt(operator, slot)) / latency
            for operator, gain in zip(candidates, gains, strict=True)
        }

    def _doubt(self, operator: OperatorState, slot: int) -> float:
        return math.sqrt(self.c * math.log(slot + 1) / max(operator.slots, 1))
