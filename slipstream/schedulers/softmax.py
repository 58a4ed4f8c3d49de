"""Operators drawn in proportion to the exponential of their expected gains (DynaTune, appendix A)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.belief import Belief
from slipstream.schedulers.eligible import fewest_slots, unfinished, warming_up
from slipstream.schedulers.gains import Gains
from slipstream.schedulers.types import OperatorState, SchedulerError


class Softmax:
    """Draws an operator with probability in proportion to exp(gain / temperature).

    The temperature is a share of the highest gain, or the draw would depend on the unit of latency and grow
    indifferent as gains shrink.
    """

    def __init__(
        self,
        *,
        seed: int,
        slot_trials: int,
        peak_flops: float,
        temperature: float = 0.2,
        curve: str = "log_power",
        sampler: str = "importance",
        count_followers: bool = True,
        share_curves: bool = True,
        heed_potential: bool = True,
    ) -> None:
        if not temperature > 0:
            raise SchedulerError(f"temperature is more than 0, not {temperature}")
        self.seed, self.temperature = seed, temperature
        belief = Belief(peak_flops=peak_flops, slot_trials=slot_trials, seed=seed, curve=curve, sampler=sampler)
        self.gains = Gains(
            belief, count_followers=count_followers, share_curves=share_curves, heed_potential=heed_potential
        )

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        candidates = unfinished(operators)
        if not candidates:
            return None
        if cold := warming_up(candidates):
            return fewest_slots(cold).key
        gains = np.array(self.gains.promises(candidates, operators))
        highest = float(gains.max())
        # If nobody is expected to gain anything, all are equal.
        odds = np.exp((gains / highest - 1) / self.temperature) if highest > 0 else np.ones(len(gains))
        rng = np.random.default_rng([self.seed, slot])
        return candidates[int(rng.choice(len(candidates), p=odds / odds.sum()))].key
