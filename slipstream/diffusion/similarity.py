"""How similar two operators are: the fewer doublings lie between their extents, the more.

Where tiles of one operator suit another depends on the ratio of their extents, whichever direction is the longest; the
cosine of raw extents sees little but the longest. See docs/diffusion.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def doublings(a: Sequence[float], b: Sequence[float]) -> float:
    """How many lie between two lists of extents or other positive numbers, on average over them."""
    return float(_distances([a, b])[0, 1])


def similarity(a: Sequence[float], b: Sequence[float]) -> float:
    """1 for equal extents, halved for each doubling between them, on average."""
    return float(2.0 ** -doublings(a, b))


def similarities(extents: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Those of all pairs."""
    return np.asarray(2.0 ** -_distances(extents))


def _distances(extents: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """What one list has more of counts as 1 in the other."""
    width = max((len(one) for one in extents), default=0)
    logs = np.zeros((len(extents), max(width, 1)))
    for row, one in zip(logs, extents, strict=True):
        row[: len(one)] = np.log2(np.maximum(np.asarray(one, dtype=float), np.finfo(float).tiny))
    return np.asarray(np.abs(logs[:, None, :] - logs[None, :, :]).mean(axis=2))
