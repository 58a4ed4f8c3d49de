"""k-means with the number of clusters at the knee of the loss: Chameleon's adaptive sampling (section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
T = TypeVar("T")

# The number of clusters goes up in these steps, up to the most that can be measured, as published.
STEP = 8
# The loss has to fall by this factor from one step to the next (authors' code), or the knee is reached.
KNEE = 2.5
_ROUNDS = 100


@dataclass(frozen=True)
class Clusters:
    """Centroids, the number of each row's centroid, and the sum of squared distances to it."""

    centroids: Array
    members: NDArray[np.intp]
    loss: float


def at_the_knee(clustered: Callable[[int], Mapping[T, Clusters]], most: int) -> Mapping[T, Clusters]:
    """What `clustered` makes, in several groups, of 8, 16, ... clusters in all, until more of them bring little."""
    found = clustered(min(STEP, most))
    for count in range(2 * STEP, most + 1, STEP):
        before, found = _loss(found), clustered(count)
        if KNEE * _loss(found) >= before:
            break
    return found


def cluster(rows: Array, count: int, rng: np.random.Generator) -> Clusters:
    """Lloyd's method from distinct rows drawn at random; a cluster without members starts again from a random row."""
    distinct = np.unique(rows, axis=0)
    count = min(count, len(distinct))
    centroids = distinct[rng.choice(len(distinct), count, replace=False)]
    members = np.full(len(rows), -1)
    for _ in range(_ROUNDS):
        nearest = _distances(rows, centroids).argmin(axis=1)
        if np.array_equal(nearest, members):
            break
        members = nearest
        for number in range(count):
            own = rows[members == number]
            centroids[number] = own.mean(axis=0) if len(own) else rows[rng.integers(len(rows))]
    distances = _distances(rows, centroids)
    return Clusters(centroids, distances.argmin(axis=1), float(distances.min(axis=1).sum()))


def _distances(rows: Array, centroids: Array) -> Array:
    return np.asarray(((rows[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=-1))


def _loss(found: Mapping[T, Clusters]) -> float:
    return sum(one.loss for one in found.values())
