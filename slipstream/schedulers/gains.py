"""Expected reduction of the model's latency by a slot of each operator: the interface of schedulers to the belief."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.belief import Belief, Forecast
from slipstream.schedulers.potential import potential, speeds_of
from slipstream.schedulers.types import OperatorState


@dataclass(frozen=True)
class _CachedForecast:
    """A forecast and what it was made from."""

    history: Sequence[float]
    flops: int
    length: int
    forecast: Forecast


class Gains:
    """Expected gains, from a belief; a forecast is computed again only when its inputs have changed.

    `heed_potential`: gains are multiplied by `potential`, larger for operators slow for their family. `per_second`:
    gains are compared by the second, not by the slot.
    """

    def __init__(self, belief: Belief, *, heed_potential: bool = True, per_second: bool = True) -> None:
        self.belief, self.heed_potential, self.per_second = belief, heed_potential, per_second
        self._cache: dict[str, _CachedForecast] = {}

    def gains(self, candidates: Sequence[OperatorState]) -> list[float]:
        """Seconds each candidate's next slot should take off the model's latency: weight (flop/best - flop/y).

        y is the best FLOP/s plus the expected improvement (DynaTune, section 4.2). For an operator with only its
        default program measured, the gain is all of its latency.
        """
        return [candidate.latency * self._reduction(candidate) for candidate in candidates]

    def factors(self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState]) -> list[float]:
        """What each candidate's gain is multiplied by in a comparison: its potential by the seconds of a slot.

        `operators` are all operators of the model.
        """
        speeds = speeds_of(operators)
        seconds = slot_seconds(candidates, operators) if self.per_second else [1.0] * len(candidates)
        return [
            (potential(candidate, speeds) if self.heed_potential else 1.0) / took
            for candidate, took in zip(candidates, seconds, strict=True)
        ]

    def weighted_gains(self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState]) -> list[float]:
        """Gains times factors, for ranking candidates; the products are not forecasts."""
        gains, factors = self.gains(candidates), self.factors(candidates, operators)
        return [gain * factor for gain, factor in zip(gains, factors, strict=True)]

    def forecast(self, operator: OperatorState) -> Forecast:
        """The forecast behind the gain of `operator`."""
        cached = self._cache.get(operator.key)
        if cached is None or not _same(cached, operator):
            made = self.belief.forecast(operator.key, operator.history, operator.flops)
            cached = _CachedForecast(operator.history, operator.flops, len(operator.history), made)
            self._cache[operator.key] = cached
        return cached.forecast

    def _reduction(self, operator: OperatorState) -> float:
        return self.forecast(operator).latency_reduction if operator.trials else 1.0


def slot_seconds(candidates: Sequence[OperatorState], operators: Sequence[OperatorState]) -> list[float]:
    """What the next slot of each candidate should take, in units of the mean slot.

    Its own mean, with one slot of the mean of all: a first slot says little, and before it nothing is known.
    """
    tried = [operator.seconds / operator.slots for operator in operators if operator.slots]
    mean = sum(tried) / len(tried) if tried else 0.0
    if mean <= 0:
        return [1.0] * len(candidates)
    return [(candidate.seconds / mean + 1.0) / (candidate.slots + 1) for candidate in candidates]


def _same(cached: _CachedForecast, operator: OperatorState) -> bool:
    if (cached.length, cached.flops) != (len(operator.history), operator.flops):
        return False
    return cached.history is operator.history or list(cached.history) == list(operator.history)
