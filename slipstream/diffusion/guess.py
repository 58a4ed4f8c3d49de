"""How fast a program is likely to be, judged from its decisions alone: no schedule is made, no trace replayed.

Boosted trees over the logarithms of tile factors. The examples are the family's: rows of operators with the same
signature mean the same, so what a prior has taught holds for its posteriors before they have been measured once, and
their own measurements, which weigh more, correct it. On a GPU how a program fills the device is described too: trees
over single factors do not see it, and the fastest programs of several operators have that in common rather than tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.program.decisions import Choice, Decisions, Points, Tile

Array = NDArray[np.float64]
Describe = Callable[[Sequence[Decisions]], Array]

_ROUNDS = 60
_SETTINGS = {
    "max_depth": 5,
    "eta": 0.15,
    "min_child_weight": 1.0,
    "lambda": 1.0,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "verbosity": 0,
}
FEWEST_EXAMPLES = 6
_SLOWEST = -3.0  # e^-3: slower than a twentieth of the best is all the same
_OWN_WEIGHT = 4.0


@dataclass(frozen=True)
class Rows:
    """Measured decisions of one operator; `seconds` are infinite for failures."""

    points: Points
    decisions: Sequence[Decisions]
    seconds: Sequence[float]
    own: bool


def describe(points: Points, decisions: Sequence[Decisions]) -> Array:
    """A row of numbers for each decision set: factors, the tiles they build up to, extents, choices."""
    columns: list[Array] = []
    held: list[Array] = []
    for index, point in enumerate(points):
        values = [d[index] for d in decisions]
        if isinstance(point, Tile):
            logs = np.log2(np.asarray(values, dtype=float).reshape(len(values), point.parts))
            # What is inside each level, from the innermost outwards.
            inner = np.cumsum(logs[:, ::-1], axis=1)[:, :-1]
            columns += [logs, inner, np.full((len(values), 1), math.log2(point.extent))]
            held.append(inner[:, :1])
        elif isinstance(point, Choice):
            columns.append(np.array([[math.log2(1 + abs(point.candidates[int(v)]))] for v in values]))  # type: ignore[arg-type]
        else:
            columns.append(np.asarray(values, dtype=float).reshape(-1, 1))
    if held:
        # How much the innermost loops hold together: registers, if these are unrolled.
        columns.append(np.sum(held, axis=0))
    return np.hstack(columns) if columns else np.zeros((len(decisions), 0))


class Guess:
    """Trees fitted to measurements. `more` describes decisions further, a row for each."""

    def __init__(self, booster: object, more: Describe | None = None) -> None:
        self._booster, self._more = booster, more

    @classmethod
    def fit(cls, rows: Sequence[Rows], seed: int, more: Describe | None = None) -> Guess | None:
        """Trees fitted to relatives' and own rows together; None if there are too few. Boosting on own rows after
        relatives', as published, ranked a little worse.
        """
        import xgboost

        rows = [row for row in rows if any(map(math.isfinite, row.seconds))]
        if sum(len(row.seconds) for row in rows) < FEWEST_EXAMPLES:
            return None
        data = xgboost.DMatrix(
            np.vstack([_described(row.points, row.decisions, more) for row in rows]),
            label=np.concatenate([_speeds(row.seconds) for row in rows]),
            weight=[_OWN_WEIGHT if row.own else 1.0 for row in rows for _ in row.seconds],
            nthread=1,
        )
        return cls(xgboost.train({**_SETTINGS, "seed": seed, "nthread": 1}, data, num_boost_round=_ROUNDS), more)

    def score(self, points: Points, decisions: Sequence[Decisions]) -> Array:
        """Higher is faster; comparable within one operator."""
        import xgboost

        data = xgboost.DMatrix(_described(points, decisions, self._more), nthread=1)
        return np.asarray(self._booster.predict(data), dtype=np.float64)  # type: ignore[attr-defined]


def _described(points: Points, decisions: Sequence[Decisions], more: Describe | None) -> Array:
    rows = describe(points, decisions)
    return rows if more is None else np.hstack([rows, more(decisions)])


def _speeds(seconds: Sequence[float]) -> list[float]:
    best = min(seconds)
    return [max(_SLOWEST, math.log(best / s)) if math.isfinite(s) else _SLOWEST for s in seconds]
