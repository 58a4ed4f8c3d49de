"""Who is really fastest among near-ties: finalists sampled in turn until one is known to win, or nothing is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.statistics import median, median_interval


@dataclass(frozen=True)
class Settling:
    """Settings: finalists lie within `near` of the best; a lead below `matters` is not worth more measuring."""

    confidence: float = 0.95
    near: float = 0.15
    matters: float = 0.005
    most_finalists: int = 8
    least_rounds: int = 6
    most_rounds: int = 60


@dataclass(frozen=True)
class Standing:
    """`winner` is an index. `decided`: at the stated confidence it is the fastest, or nobody is faster by more
    than what matters. `rounds[i]` are the samples of finalist i, one per round it took part in."""

    winner: int
    decided: bool
    rounds: tuple[tuple[float, ...], ...]


def near_ties(medians: Sequence[float], settling: Settling) -> list[int]:
    """The finalists among programs with these medians, fastest first."""
    if not medians:
        return []
    order = sorted(range(len(medians)), key=lambda i: medians[i])
    limit = medians[order[0]] * (1 + settling.near)
    return [i for i in order if medians[i] <= limit][: settling.most_finalists]


def settle(
    take: Callable[[int], float],
    finalists: int,
    settling: Settling,
    rng: np.random.Generator,
    enough: Callable[[], bool] = lambda: False,
) -> Standing:
    """Sample with `take(i)` in rounds, in a new order each; whoever has clearly lost drops out. After any round it may
    be `enough`.

    Finalists are compared round by round (the ratio of their times), so that a machine that slows down for both
    changes nothing. With several opponents the confidence is shared out among them (Bonferroni).
    """
    rounds: list[list[float]] = [[] for _ in range(finalists)]
    racing = set(range(finalists))
    confidence = 1 - (1 - settling.confidence) / max(1, finalists - 1)
    leader, decided = 0, finalists <= 1
    while not decided and len(rounds[leader]) < settling.most_rounds:
        for i in rng.permutation(sorted(racing)):
            rounds[int(i)].append(take(int(i)))
        leader = min(racing, key=lambda i: median(rounds[i]))
        if enough():
            break
        if len(rounds[leader]) < settling.least_rounds:
            continue
        open_questions = False
        for i in racing - {leader}:
            ratios = [other / mine for other, mine in zip(rounds[i], rounds[leader], strict=True)]
            interval = median_interval(ratios, confidence)
            if interval.low > 1:
                racing = racing - {i}
            elif interval.low < 1 - settling.matters:
                open_questions = True
        decided = not open_questions
    return Standing(leader, decided, tuple(tuple(samples) for samples in rounds))
