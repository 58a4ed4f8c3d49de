"""How good a cost model's scores turned out to be, within one operator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pair_accuracy(scores: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
    """The share of pairs of programs with different times whose faster one has the higher score; a tie is half.

    0.5 is what guessing gives. NaN if no two programs differ.
    """
    first, second = np.triu_indices(len(scores), 1)
    differ = seconds[first] != seconds[second]
    first, second = first[differ], second[differ]
    if not len(first):
        return float("nan")
    faster = np.where(seconds[first] < seconds[second], 1.0, -1.0)
    return float(np.mean(0.5 + 0.5 * np.sign(scores[first] - scores[second]) * faster))


def best_of_top(scores: NDArray[np.float64], seconds: NDArray[np.float64], count: int) -> float:
    """Measure the `count` highest scores only: the speed of the fastest found, relative to the fastest there is."""
    top = np.argsort(-scores, kind="stable")[:count]
    return float(np.min(seconds) / np.min(seconds[top]))
