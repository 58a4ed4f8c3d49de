"""How fast a program is likely to be, judged from its decisions alone: no schedule is made, no trace replayed.

Boosted trees over the logarithms of tile factors and over what the tiles take up of the machine
(`program/tile_usage.py`). The examples are the family's: rows of operators with the same signature mean the same, so
what a prior has taught holds for its posteriors before they have been measured once, and their own measurements, which
weigh more, correct it. An operator of which there are too few examples is judged by what tiles take up alone: that
means the same for all operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.program.decisions import Choice, Decisions, Points, Tile

Array = NDArray[np.float64]

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
ENOUGH_EXAMPLES = 12  # of the family: with fewer, those of all operators rank better
_MOST_OF_AN_OPERATOR = 64
_SLOWEST = -3.0  # e^-3: slower than a twentieth of the best is all the same
_OWN_WEIGHT = 4.0


@dataclass(frozen=True)
class Rows:
    """Measured decisions of one operator; `seconds` are infinite for failures. `usage` has a row for each, if known."""

    points: Points
    decisions: Sequence[Decisions]
    seconds: Sequence[float]
    own: bool
    usage: Array | None = None


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
    """Trees fitted to measurements; `fit` and `fit_to_usage` return None if there are too few."""

    def __init__(self, booster: object, *, decisions: bool, usage_width: int) -> None:
        self._booster, self._decisions, self._usage_width = booster, decisions, usage_width

    @classmethod
    def fit(cls, rows: Sequence[Rows], seed: int) -> Guess | None:
        """Trees fitted to relatives' and own rows together. Boosting on own rows after relatives', as published, ranked
        a little worse.
        """
        rows = [row for row in rows if any(map(math.isfinite, row.seconds))]
        if sum(len(row.seconds) for row in rows) < FEWEST_EXAMPLES:
            return None
        width = max((row.usage.shape[1] for row in rows if row.usage is not None), default=0)
        inputs = [
            _inputs(describe(row.points, row.decisions), _or_unknown(row.usage, len(row.seconds), width))
            for row in rows
        ]
        weights = [_OWN_WEIGHT if row.own else 1.0 for row in rows for _ in row.seconds]
        booster = _boosted(inputs, [_speeds(row.seconds, min(row.seconds)) for row in rows], weights, seed)
        return cls(booster, decisions=True, usage_width=width)

    @classmethod
    def fit_to_usage(cls, operators: Sequence[Sequence[Rows]], seed: int) -> Guess | None:
        """Trees over what tiles take up, fitted to the rows of several operators, each with all its sketches."""
        inputs, speeds = [], []
        for rows in operators:
            best = min((second for row in rows for second in row.seconds), default=math.inf)
            known = [row for row in rows if row.usage is not None and math.isfinite(best)]
            for row in known:
                # The fastest and the slowest, evenly.
                order = np.argsort(row.seconds, kind="stable")
                chosen = order[np.linspace(0, len(order) - 1, min(len(order), _MOST_OF_AN_OPERATOR)).astype(int)]
                assert row.usage is not None
                inputs.append(row.usage[chosen])
                speeds.append(_speeds([row.seconds[n] for n in chosen], best))
        if sum(map(len, speeds)) < 2 * ENOUGH_EXAMPLES:
            return None
        return cls(_boosted(inputs, speeds, None, seed), decisions=False, usage_width=inputs[0].shape[1])

    def score(self, points: Points, decisions: Sequence[Decisions], usage: Array | None = None) -> Array:
        """Higher is faster; comparable within one operator. `usage` is needed where it was learned from."""
        import xgboost

        described = describe(points, decisions) if self._decisions else None
        known = usage if self._usage_width else None
        inputs = _inputs(described, _or_unknown(known, len(decisions), self._usage_width))
        data = xgboost.DMatrix(inputs, nthread=1)
        return np.asarray(self._booster.predict(data), dtype=np.float64)  # type: ignore[attr-defined]


def _inputs(described: Array | None, usage: Array) -> Array:
    return usage if described is None else np.hstack([described, usage])


def _or_unknown(usage: Array | None, count: int, width: int) -> Array:
    """Trees take what is not a number as unknown."""
    return np.full((count, width), np.nan) if usage is None else usage


def _speeds(seconds: Sequence[float], best: float) -> list[float]:
    return [max(_SLOWEST, math.log(best / s)) if math.isfinite(s) else _SLOWEST for s in seconds]


def _boosted(inputs: Sequence[Array], speeds: Sequence[Sequence[float]], weights: object, seed: int) -> object:
    import xgboost

    data = xgboost.DMatrix(np.vstack(inputs), label=np.concatenate(speeds), weight=weights, nthread=1)
    return xgboost.train({**_SETTINGS, "seed": seed, "nthread": 1}, data, num_boost_round=_ROUNDS)
