"""The highest expected gain most of the time, anybody now and then (DynaTune, appendix A)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.belief import Belief
from slipstream.schedulers.eligible import fewest_slots, highest, unfinished, warming_up
from slipstream.schedulers.gains import Gains
from slipstream.schedulers.types import OperatorState, SchedulerError


class EpsilonGreedy:
    """With probability `epsilon` a random operator, otherwise the one with the highest expected gain."""

    def __init__(
        self,
        *,
        seed: int,
        slot_trials: int,
        peak_flops: float,
        epsilon: float = 0.05,
        curve: str = "log_power",
        sampler: str = "importance",
        count_followers: bool = True,
        share_curves: bool = True,
        heed_potential: bool = True,
    ) -> None:
        if not 0 <= epsilon <= 1:
            raise SchedulerError(f"epsilon is a probability between 0 and 1, not {epsilon}")
        self.seed, self.epsilon = seed, epsilon
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
        rng = np.random.default_rng([self.seed, slot])
        if rng.random() < self.epsilon:
            return candidates[int(rng.integers(len(candidates)))].key
        gains = self.gains.promises(candidates, operators)
        by_key = {operator.key: gain for operator, gain in zip(candidates, gains, strict=True)}
        return highest(candidates, lambda operator: by_key[operator.key]).key
