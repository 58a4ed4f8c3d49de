"""Epsilon-greedy: the highest expected gain, or with a small probability a random operator (DynaTune, appendix A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.schedulers.by_gain import ByGain
from slipstream.schedulers.eligible import highest
from slipstream.schedulers.types import OperatorState, SchedulerError


@dataclass(kw_only=True)
class EpsilonGreedy(ByGain):
    """With probability `epsilon` a random operator, otherwise the one with the highest expected gain."""

    epsilon: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise SchedulerError(f"epsilon is a probability between 0 and 1, not {self.epsilon}")
        super().__post_init__()

    def choose(
        self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState], slot: int
    ) -> OperatorState:
        rng = np.random.default_rng([self.seed, slot])
        if rng.random() < self.epsilon:
            return candidates[int(rng.integers(len(candidates)))]
        gains = self.gains.weighted_gains(candidates, operators)
        by_key = {operator.key: gain for operator, gain in zip(candidates, gains, strict=True)}
        return highest(candidates, lambda operator: by_key[operator.key])
