"""How one decision moves away from its value: exactly, over all legal values, however many a tile has.

A move from `start` to another value v has the weight exp(-distance(start, v) / REACH). A tile's distance is a sum over
its factors, so the weight is a product over them: with the sums

    Z_1(m) = w_1(m),  Z_k(m) = Σ over d | m of w_k(d) · Z_(k-1)(m / d)

over the divisors m of the extent (w_k is the weight of the k-th factor) the factors are drawn one after the other,
and no list of all factorisations is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slipstream.program.decisions import Choice, IllegalDecisionError, Location, Point, Tile, Value, divisors

Array = NDArray[np.float64]

REACH = 0.25  # the distance at which a move is e times less likely
_LEAST_TOTAL = 1e-6  # one value weighs at least e^-4; less than this is rounding


class Moves:
    """Where one decision may go from `start`."""

    def __init__(self, point: Point, start: Value) -> None:
        self._near = _near_tiles(point, start) if isinstance(point, Tile) else _NearIndices(point, start)
        self._start = start
        self._total = self._near.total - self._near.weight(start)

    @property
    def is_possible(self) -> bool:
        """Whether there is another value at all."""
        return self._total > _LEAST_TOTAL

    def probability(self, value: Value) -> float:
        """Of a move to `value`, given that there is one."""
        if value == self._start or not self.is_possible:
            return 0.0
        return self._near.weight(value) / self._total

    def draw(self, count: int, rng: np.random.Generator) -> list[Value]:
        """`count` moves."""
        found: list[Value] = []
        while len(found) < count:
            found += [value for value in self._near.draw(2 * count, rng) if value != self._start]
        return found[:count]


class _NearIndices:
    """The weights of a choice's or a location's values by distance alone."""

    def __init__(self, point: Choice | Location, start: Value) -> None:
        self._values = list(point.values())
        self._weights = np.exp(-np.array([point.distance(value, start) for value in self._values]) / REACH)
        self._places = {value: place for place, value in enumerate(self._values)}
        self.total = float(self._weights.sum())

    def weight(self, value: Value) -> float:
        place = self._places.get(value)
        return 0.0 if place is None else float(self._weights[place])

    def draw(self, count: int, rng: np.random.Generator) -> list[Value]:
        picks = rng.choice(len(self._values), size=count, p=self._weights / self.total)
        return [self._values[pick] for pick in picks]


@dataclass(frozen=True)
class _NearTiles:
    """The same for a tile. `factors[k]` are the weights of the k-th factor, `totals[k]` are Z over factors 0 to k."""

    point: Tile
    factors: Array
    totals: Array

    @property
    def total(self) -> float:
        return float(self.totals[-1, -1])

    def weight(self, value: Value) -> float:
        try:
            self.point.check(value)
        except IllegalDecisionError:
            return 0.0
        assert isinstance(value, tuple)
        places, _ = _lattice(self.point.extent)
        return math.prod(float(self.factors[k, places[factor]]) for k, factor in enumerate(value))

    def draw(self, count: int, rng: np.random.Generator) -> list[Value]:
        """Innermost factors first; the outermost is what is left."""
        places, quotients = _lattice(self.point.extent)
        numbers = np.array(list(places))
        left = np.full(count, len(numbers) - 1)
        columns = []
        for k in range(self.point.parts - 1, 0, -1):
            # Quotient -1 (no divisor) finds the zero at the end.
            sums = np.append(self.totals[k - 1], 0.0)[quotients[left]]
            ladder = np.cumsum(self.factors[k] * sums, axis=1)
            picks = (ladder > rng.random(count)[:, None] * ladder[:, -1:]).argmax(axis=1)
            columns.append(numbers[picks])
            left = quotients[left, picks]
        return [tuple(map(int, value)) for value in zip(numbers[left], *reversed(columns), strict=True)]


@lru_cache(maxsize=512)
def _near_tiles(point: Tile, start: Value) -> _NearTiles:
    places, quotients = _lattice(point.extent)
    logs = np.log2(np.array(list(places), dtype=float))
    doublings = np.abs(logs - np.log2(np.asarray(start, dtype=float))[:, None])
    factors = np.exp(-doublings / (2 * max(math.log2(point.extent), 1.0) * REACH))
    factors[-1, np.array(list(places)) > point.most_innermost] = 0.0
    totals = [factors[0]]
    for weights in factors[1:]:
        totals.append((weights * np.append(totals[-1], 0.0)[quotients]).sum(axis=1))
    return _NearTiles(point, factors, np.array(totals))


@lru_cache(maxsize=1024)
def _lattice(extent: int) -> tuple[dict[int, int], NDArray[np.int64]]:
    """The divisors of `extent` with their places, and the place of each one's quotient by each other, or -1."""
    places = {number: place for place, number in enumerate(divisors(extent))}
    quotients = [[places[a // b] if a % b == 0 else -1 for b in places] for a in places]
    return places, np.array(quotients)
