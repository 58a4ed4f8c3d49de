"""Fewer points that look the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def spread(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spread, first and last among them."""
    if count <= most:
        return list(range(count))
    return [round(n * (count - 1) / (most - 1)) for n in range(most)]


def spread_steps(steps: Sequence[T], most: int) -> list[T]:
    """At most `most` of the steps; what a curve starts and ends with stays."""
    return [steps[n] for n in spread(len(steps), most)]
