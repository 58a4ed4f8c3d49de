"""Base class of the policies that pick by expected gain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.belief import Belief
from slipstream.schedulers.eligible import pick_adaptively
from slipstream.schedulers.gains import Gains
from slipstream.schedulers.types import OperatorState


@dataclass(kw_only=True)
class ByGain(ABC):
    """Picks operators without a valid program first, then by the gains a belief predicts; for options see `Gains`."""

    seed: int
    slot_trials: int
    peak_flops: float
    curve: str = "log_power"
    sampler: str = "importance"
    heed_potential: bool = True
    per_second: bool = True
    gains: Gains = field(init=False, repr=False)

    def __post_init__(self) -> None:
        belief = Belief(
            peak_flops=self.peak_flops,
            slot_trials=self.slot_trials,
            seed=self.seed,
            curve=self.curve,
            sampler=self.sampler,
        )
        self.gains = Gains(belief, heed_potential=self.heed_potential, per_second=self.per_second)

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        return pick_adaptively(operators, lambda candidates: self.choose(candidates, operators, slot))

    @abstractmethod
    def choose(
        self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState], slot: int
    ) -> OperatorState:
        """One of the `candidates`; `operators` are all there are."""
