"""Expected reduction of the model's latency by a slot of each operator: the interface of schedulers to the belief."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.belief import Belief, Forecast
from slipstream.schedulers.potential import potential, speeds_of
from slipstream.schedulers.types import OperatorState

# Of this many nearest relatives, the curves of those with the most trials are used. A slot for one operator then
# changes the forecasts of a few others, not of its whole family.
_NEAREST = 4
_RELATIVES = 3


@dataclass(frozen=True)
class _CachedForecast:
    """A forecast and what it was made from."""

    history: Sequence[float]
    flops: int
    length: int
    relatives: tuple[tuple[str, int], ...]
    forecast: Forecast


class Gains:
    """Expected gains, from a belief; a forecast is computed again only when its inputs have changed.

    `count_followers`: the gain of a family's prior includes that of its followers, as far as `OperatorState` counts
    them. `share_curves`: the curve of an operator with few trials is fitted with those of similar ones that
    have more. `heed_potential`: gains are multiplied by `potential`, larger for operators slow for their family.
    `per_second`: gains are compared by the second, not by the slot.
    """

    def __init__(
        self,
        belief: Belief,
        *,
        count_followers: bool = True,
        share_curves: bool = True,
        heed_potential: bool = True,
        per_second: bool = True,
    ) -> None:
        self.belief = belief
        self.count_followers, self.share_curves = count_followers, share_curves
        self.heed_potential, self.per_second = heed_potential, per_second
        self._cache: dict[str, _CachedForecast] = {}

    def gains(self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState]) -> list[float]:
        """Seconds each candidate's next slot should take off the model's latency: weight (flop/best - flop/y).

        y is the best FLOP/s plus the expected improvement (DynaTune, section 4.2). For an operator with only its
        default program measured, the gain is `largest_gain`. `operators` are all operators of the model.
        """
        by_key = {operator.key: operator for operator in operators} if self.share_curves else {}
        return [self.largest_gain(candidate) * self._reduction(candidate, by_key) for candidate in candidates]

    def factors(self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState]) -> list[float]:
        """What each candidate's gain is multiplied by in a comparison: its potential by the seconds of a slot."""
        speeds = speeds_of(operators)
        seconds = slot_seconds(candidates, operators) if self.per_second else [1.0] * len(candidates)
        return [
            (potential(candidate, speeds) if self.heed_potential else 1.0) / took
            for candidate, took in zip(candidates, seconds, strict=True)
        ]

    def weighted_gains(self, candidates: Sequence[OperatorState], operators: Sequence[OperatorState]) -> list[float]:
        """Gains times factors, for ranking candidates; the products are not forecasts."""
        gains, factors = self.gains(candidates, operators), self.factors(candidates, operators)
        return [gain * factor for gain, factor in zip(gains, factors, strict=True)]

    def largest_gain(self, operator: OperatorState) -> float:
        """Seconds of the model's latency that this operator and its followers take: an upper bound of the gain."""
        return operator.latency + (sum(operator.followers.values()) if self.count_followers else 0.0)

    def forecast(self, operator: OperatorState, operators: Sequence[OperatorState]) -> Forecast:
        """The forecast behind the gain of `operator`, for the report."""
        by_key = {other.key: other for other in operators} if self.share_curves else {}
        return self._forecast(operator, self._relatives(operator, by_key))

    def _reduction(self, operator: OperatorState, by_key: Mapping[str, OperatorState]) -> float:
        relatives = self._relatives(operator, by_key)
        if operator.trials == 0 and not relatives:
            return 1.0
        return self._forecast(operator, relatives).latency_reduction

    def _forecast(self, operator: OperatorState, relatives: Sequence[OperatorState]) -> Forecast:
        lengths = tuple((relative.key, self._used_trials(operator, relative)) for relative in relatives)
        cached = self._cache.get(operator.key)
        if cached is None or not _same(cached, operator, lengths):
            histories = [
                (relative.history[:length], relative.flops)
                for relative, (_, length) in zip(relatives, lengths, strict=True)
            ]
            made = self.belief.forecast(operator.key, operator.history, operator.flops, histories)
            cached = _CachedForecast(operator.history, operator.flops, len(operator.history), lengths, made)
            self._cache[operator.key] = cached
        return cached.forecast

    def _relatives(self, operator: OperatorState, by_key: Mapping[str, OperatorState]) -> list[OperatorState]:
        """Similar operators with more trials, those with the most usable trials first.

        Trials beyond those the belief uses do not count, so that a slot for one of them seldom changes the choice for
        the others.
        """
        similar = (by_key[key] for key in operator.similar[:_NEAREST] if key in by_key and key != operator.key)
        longer = [other for other in similar if other.trials > operator.trials]
        return sorted(longer, key=lambda other: (-self._used_trials(operator, other), other.key))[:_RELATIVES]

    def _used_trials(self, operator: OperatorState, relative: OperatorState) -> int:
        """Number of trials of a relative's history that the belief uses; later ones do not change the forecast."""
        return min(len(relative.history), len(operator.history) + 2 * self.belief.slot_trials)


def slot_seconds(candidates: Sequence[OperatorState], operators: Sequence[OperatorState]) -> list[float]:
    """What the next slot of each candidate should take, in units of the mean slot.

    Its own mean, with one slot of the mean of all: a first slot says little, and before it nothing is known.
    """
    tried = [operator.seconds / operator.slots for operator in operators if operator.slots]
    mean = sum(tried) / len(tried) if tried else 0.0
    if mean <= 0:
        return [1.0] * len(candidates)
    return [(candidate.seconds / mean + 1.0) / (candidate.slots + 1) for candidate in candidates]


def _same(cached: _CachedForecast, operator: OperatorState, relatives: tuple[tuple[str, int], ...]) -> bool:
    if (cached.length, cached.flops, cached.relatives) != (len(operator.history), operator.flops, relatives):
        return False
    return cached.history is operator.history or list(cached.history) == list(operator.history)
