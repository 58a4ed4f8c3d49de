"""Median intervals of run times, for any distribution: the noise of run times is one-sided with a long tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, comb, floor
from statistics import NormalDist, median

__all__ = ["Interval", "median", "median_interval", "median_ranks"]

# From here on the normal approximation to the binomial is as good and needs no large integers.
_EXACT = 500


@dataclass(frozen=True)
class Interval:
    """Where a median lies with the stated confidence."""

    low: float
    high: float

    @property
    def relative_width(self) -> float:
        """Width over the middle: 0.02 is ±1 %."""
        middle = (self.low + self.high) / 2
        return (self.high - self.low) / middle if middle else 0.0


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Order statistics that enclose the true median with at least `confidence`, whatever the distribution.

    Fewer than six values cannot do that at 95 %: then it is their whole range.
    """
    ordered = sorted(values)
    low, high = median_ranks(len(ordered), confidence)
    return Interval(ordered[low], ordered[high])


@cache
def median_ranks(count: int, confidence: float = 0.95) -> tuple[int, int]:
    """Zero-based ranks of the two order statistics of `count` values that enclose the median.

    The number of values below the median is binomial(count, 1/2); the ranks leave out equal tails.
    """
    if count > _EXACT:
        half = _normal_quantile(confidence) / 2 * count**0.5
        return max(0, floor(count / 2 - half)), min(count - 1, ceil(count / 2 + half))
    outside = (1 - confidence) / 2 * 2.0**count
    low, tail = 0, 1.0
    while low + 1 < count / 2 and tail + comb(count, low + 1) <= outside:
        low += 1
        tail += comb(count, low)
    return low, count - 1 - low


def _normal_quantile(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)
