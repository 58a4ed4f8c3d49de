"""DynaTune's policy: the upper confidence bound of the gain (section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.schedulers.by_gain import ByGain
from slipstream.schedulers.eligible import highest
from slipstream.schedulers.types import OperatorState, SchedulerError


@dataclass(kw_only=True)
class UCB(ByGain):
    """Picks the operator with the highest `potential * (gain + latency * sqrt(c * ln t) / (slots + 1)) / seconds`.

    Units. The paper adds seconds (the gain) to a pure number (the bonus), so its schedule depends on the unit of
    latency, and it needs another constant for models under a millisecond. Here both are shares of the model's
    latency. Hoeffding's bound, where the bonus comes from, is proportional to the range of the reward, and a slot
    cannot take more off the model than the operator's own latency: so the bonus is scaled by that share.
    The schedule is then the same in seconds and in milliseconds, and an operator with a small share gets a small
    bonus. The range shrinks too: the best of n slots is beaten by the next with probability
    1 / (n + 1), so the bonus falls with the number of slots and not, as for rewards that stay, with its root.

    Potential. Larger where relatives reach more FLOP/s (`potential.py`). Seconds are those of a slot, in units of the
    mean one: the budget is time, and slots of different operators differ tenfold.

    While only an operator's default program is measured, its gain is the latency it can reach: the tightest value
    of the paper's large constant gamma.
    """

    c: float = 0.5

    def __post_init__(self) -> None:
        if not self.c >= 0:
            raise SchedulerError(f"c, the weight of exploration, is 0 or more, not {self.c}")
        super().__post_init__()

    def choose(
        self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState], slot: int
    ) -> OperatorState:
        bounds = self.bounds(candidates, operators, slot)
        return highest(candidates, lambda operator: bounds[operator.key])

    def bounds(
        self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState], slot: int
    ) -> dict[str, float]:
        """The upper confidence bound of each candidate's gain in the time of a mean slot, as a share of the latency."""
        latency = sum(operator.latency for operator in operators if math.isfinite(operator.latency)) or 1.0
        gains = self.gains.gains(candidates)
        factors = self.gains.factors(candidates, operators)
        return {
            operator.key: factor * (gain + operator.latency * self._doubt(operator, slot)) / latency
            for operator, gain, factor in zip(candidates, gains, factors, strict=True)
        }

    def _doubt(self, operator: OperatorState, slot: int) -> float:
        return math.sqrt(self.c * math.log(slot + 1)) / (operator.slots + 1)
