"""The posterior over an operator's decisions: an explicit distribution that proposals are drawn from.

It is a mixture of centres. Around a centre each decision independently stays as it is with probability 1 - `spread`,
or moves to another legal value, near ones being likelier. The prior has programs carried over from relatives, the
default program and random ones as its centres. Once something has been measured here, half of the draws are made
around the fastest of that, the other half as before: which of them are worth measuring is for the trees to say that
are fitted to all measurements (`guess.py`), and they can only choose among what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.diffusion.moves import Moves
from slipstream.program.decisions import Decisions, Points, Value

FIRST_SPREAD, SPREAD = 0.45, 0.3
_OWN_CENTRES = 4
_OWN_SHARE = 0.5


@dataclass(frozen=True)
class Centre:
    """Decisions to search around; `origin` says how they came about, `weight` how often they are drawn from."""

    decisions: Decisions
    weight: float
    origin: str


@dataclass
class Posterior:
    """A distribution over the decisions of one sketch for one operator."""

    points: Points
    centres: list[Centre]
    spread: float = FIRST_SPREAD

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

    def update(self, measured: Sequence[tuple[Decisions, float]]) -> None:
        """Take in all decisions measured here and their seconds, infinite for a failure; call it once."""
        fastest = sorted((one for one in measured if math.isfinite(one[1])), key=lambda one: one[1])[:_OWN_CENTRES]
        if not fastest:
            return
        own = [Centre(decisions, 1.0, "measured") for decisions, _ in fastest]
        self.centres = _scaled(self.centres, 1 - _OWN_SHARE) + _scaled(own, _OWN_SHARE)
        self.spread = SPREAD

    def _moves(self, index: int, start: Value) -> Moves | None:
        """None if the decision has to stay."""
        if not self.points[index].is_open:
            return None
        moves = Moves(self.points[index], start)
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


def _scaled(centres: Sequence[Centre], share: float) -> list[Centre]:
    total = sum(centre.weight for centre in centres)
    return [Centre(c.decisions, share * c.weight / total, c.origin) for c in centres]
