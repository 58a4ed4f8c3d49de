"""The posterior over an operator's decisions: an explicit distribution that proposals are drawn from.

It is a mixture of centres: programs carried over from relatives, the default program, and what was measured here.
Around a centre each decision independently stays as it is with probability 1 - `spread`, or moves to another legal
value, near ones being likelier. Measurements update three things: the weights of the centres (a centre whose
offspring is fast gains weight, one way of carrying decisions over gains on another), the centres themselves (what was
measured fast becomes one), and the values (a value that fast programs have is moved to more often). With every round
`spread` shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.diffusion.moves import Moves
from slipstream.program.decisions import Decisions, Points, Value

FIRST_SPREAD, LAST_SPREAD, COOLING = 0.45, 0.15, 0.8
_MOST_CENTRES = 12
_SHARPNESS = 8.0  # a centre twice as slow as the best weighs 2^-8
_SHRINKAGE = 3.0  # a value seen this often gets half its mean gain


@dataclass(frozen=True)
class Centre:
    """Decisions to search around; `origin` says how they came about, `weight` how often they are drawn from."""

    decisions: Decisions
    weight: float
    origin: str


@dataclass(frozen=True)
class Observation:
    """Decisions, the seconds they took (infinite for a failure), and the origin of the centre they came from."""

    decisions: Decisions
    seconds: float
    origin: str = ""


@dataclass
class Posterior:
    """A distribution over the decisions of one sketch for one operator."""

    points: Points
    centres: list[Centre]
    spread: float = FIRST_SPREAD
    _preferences: dict[int, Mapping[Value, float]] = field(default_factory=dict, repr=False)

    def sample(self, count: int, rng: np.random.Generator) -> list[tuple[Decisions, str]]:
        """`count` decision sets with the origins of their centres."""
        weights = np.array([centre.weight for centre in self.centres])
        chosen = rng.choice(len(self.centres), size=count, p=weights / weights.sum())
        drawn: list[tuple[Decisions, str]] = []
        for index, times in zip(*np.unique(chosen, return_counts=True), strict=True):
            centre = self.centres[index]
            columns = [self._draw(i, centre.decisions[i], int(times), rng) for i in range(len(self.points))]
            drawn += [(values, centre.origin) for values in zip(*columns, strict=True)]
        return drawn

    def log_prob(self, decisions: Decisions) -> float:
        """Natural logarithm of the probability of drawing exactly these decisions."""
        total = sum(centre.weight for centre in self.centres)
        terms = [
            math.log(centre.weight / total)
            + sum(self._log_move(i, centre.decisions[i], value) for i, value in enumerate(decisions))
            for centre in self.centres
            if centre.weight > 0
        ]
        return float(np.logaddexp.reduce(terms)) if terms else -math.inf

    def update(self, observations: Sequence[Observation], rounds: int) -> None:
        """Take in everything that has been measured in `rounds` rounds; call it on a fresh posterior."""
        good = [o for o in observations if math.isfinite(o.seconds)]
        self.spread = max(LAST_SPREAD, FIRST_SPREAD * COOLING**rounds)
        if not good:
            return
        best = min(o.seconds for o in good)
        trust = _trust(observations, best)
        carried = [Centre(c.decisions, c.weight * trust.get(c.origin, 1.0), c.origin) for c in self.centres]
        fastest = sorted(good, key=lambda o: o.seconds)[:_MOST_CENTRES]
        own = [Centre(o.decisions, (best / o.seconds) ** _SHARPNESS, "measured") for o in fastest]
        # The more has been measured here, the less is taken on trust from elsewhere.
        share = len(good) / (len(good) + 4.0)
        self.centres = _scaled(carried, 1 - share) + _scaled(own, share)
        for index in range(len(self.points)):
            self._preferences[index] = _preferences([(o.decisions[index], math.log(best / o.seconds)) for o in good])

    def _moves(self, index: int, start: Value) -> Moves | None:
        """None if the decision has to stay."""
        if not self.points[index].is_open:
            return None
        moves = Moves(self.points[index], start, self._preferences.get(index, {}))
        return moves if moves.is_possible else None

    def _draw(self, index: int, start: Value, count: int, rng: np.random.Generator) -> list[Value]:
        moves = self._moves(index, start)
        moved = rng.random(count) < self.spread
        if moves is None:
            return [start] * count
        targets = iter(moves.draw(int(moved.sum()), rng))
        return [next(targets) if move else start for move in moved]

    def _log_move(self, index: int, start: Value, end: Value) -> float:
        moves = self._moves(index, start)
        if moves is None:
            return 0.0 if start == end else -math.inf
        probability = 1 - self.spread if start == end else self.spread * moves.probability(end)
        return math.log(probability) if probability > 0 else -math.inf


def _preferences(speeds: Sequence[tuple[Value, float]]) -> Mapping[Value, float]:
    """How much better than the average the programs with each value did, shrunk towards 0 the fewer there are."""
    average = sum(speed for _, speed in speeds) / len(speeds)
    gains: dict[Value, list[float]] = {}
    for value, speed in speeds:
        gains.setdefault(value, []).append(speed - average)
    return {value: min(2.0, max(-2.0, sum(gain) / (len(gain) + _SHRINKAGE))) for value, gain in gains.items()}


def _trust(observations: Sequence[Observation], best: float) -> Mapping[str, float]:
    """For each origin, how fast its offspring was: 1 if like the best, towards 0 if all of it was slow or failed."""
    speeds: dict[str, list[float]] = {}
    for o in observations:
        speeds.setdefault(o.origin, []).append(best / o.seconds if math.isfinite(o.seconds) else 0.0)
    # Two imagined good ones, so that one bad experience does not close a way for ever.
    return {origin: ((2 + sum(sorted(s)[-3:])) / (2 + min(len(s), 3))) ** 4 for origin, s in speeds.items()}


def _scaled(centres: list[Centre], share: float) -> list[Centre]:
    total = sum(centre.weight for centre in centres)
    if total <= 0:
        return []
    return [Centre(c.decisions, share * c.weight / total, c.origin) for c in centres]
