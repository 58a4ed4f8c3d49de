"""Operators drawn in proportion to the exponential of their expected gains (DynaTune, appendix A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.schedulers.by_gain import ByGain
from slipstream.schedulers.types import OperatorState, SchedulerError


@dataclass(kw_only=True)
class Softmax(ByGain):
    """Draws an operator with probability in proportion to exp(gain / temperature).

    The temperature is a share of the highest gain, or the draw would depend on the unit of latency and become
    uniform as gains shrink.
    """

    temperature: float = 0.2

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise SchedulerError(f"temperature is more than 0, not {self.temperature}")
        super().__post_init__()

    def choose(
        self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState], slot: int
    ) -> OperatorState:
        gains = np.array(self.gains.weighted_gains(candidates, operators))
        highest = float(gains.max())
        # If no operator is expected to gain anything, all are equally likely.
        odds = np.exp((gains / highest - 1) / self.temperature) if highest > 0 else np.ones(len(gains))
        rng = np.random.default_rng([self.seed, slot])
        return candidates[int(rng.choice(len(candidates), p=odds / odds.sum()))]
