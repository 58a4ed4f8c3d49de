"""The decisions of a sketch as a row of knobs, each with a ladder of values: what Chameleon moves and clusters.

A tile has a knob for each factor but the outermost, on the divisors of its extent; a choice has one on its candidates.
Several positions can mean the same decisions: a factor that no longer divides what is left goes to the nearest that
does.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slipstream.program.decisions import INLINED, Choice, Decisions, Points, Tile, divisors, nearest_tile

Array = NDArray[np.float64]
Positions = NDArray[np.int64]

_DEEPEST = 16  # locations deeper than a schedule has loops are all the same


class Knobs:
    """The knobs of some points; `tops[i]` is the highest position of knob i, the lowest is 0."""

    def __init__(self, points: Points) -> None:
        self._points = points
        tops: list[int] = []
        for point in points:
            if isinstance(point, Tile):
                tops += [len(divisors(point.extent)) - 1] * (point.parts - 1)
            else:
                tops.append(len(point.candidates) - 1 if isinstance(point, Choice) else _DEEPEST - INLINED)
        self.tops: Positions = np.array(tops, dtype=np.int64)

    def positions(self, decisions: Decisions) -> list[int]:
        """Where the knobs stand for these decisions."""
        row: list[int] = []
        for point, value in zip(self._points, decisions, strict=True):
            if isinstance(value, tuple):
                assert isinstance(point, Tile)
                row += [divisors(point.extent).index(factor) for factor in value[1:]]
            else:
                row.append(value if isinstance(point, Choice) else min(value, _DEEPEST) - INLINED)
        return row

    def decisions(self, positions: Positions) -> Decisions:
        """The decisions nearest to these positions, which are moved into their ranges."""
        left = iter(np.clip(positions, 0, self.tops).tolist())
        values: list[int | tuple[int, ...]] = []
        for point in self._points:
            if isinstance(point, Tile):
                values.append(_tile(point, tuple(next(left) for _ in range(point.parts - 1))))
            else:
                values.append(next(left) + (0 if isinstance(point, Choice) else INLINED))
        return tuple(values)

    def scaled(self, positions: Positions) -> Array:
        """Positions from 0 to 1."""
        return np.asarray(positions / np.maximum(self.tops, 1))


@lru_cache(maxsize=65536)
def _tile(point: Tile, positions: tuple[int, ...]) -> tuple[int, ...]:
    ladder = divisors(point.extent)
    return nearest_tile(point, [1.0, *(float(ladder[position]) for position in positions)])
