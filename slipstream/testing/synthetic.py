"""Tuning curves drawn at random that look like recorded ones, for tests and for studying schedulers.

A best-so-far curve is the record minimum of many draws: long flat stretches, falls that grow rare, and now and then
a jump. Each trial here draws a program whose time lies above the operator's floor by a heavy-tailed excess; a search
that learns makes the excess smaller with time; finding a better structure lowers the floor at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.schedulers.replay import RecordedCurve


def best_so_far(rng: np.random.Generator, trials: int) -> NDArray[np.float64]:
    """Best time after 0, 1, ... trials, relative to the lowest possible time 1; entry 0 is the default program."""
    start = 1 + rng.lognormal(0.3, 1.0)
    first, last = rng.lognormal(0.5, 0.6), rng.lognormal(-1.2, 0.6)
    learning = trials * rng.uniform(0.02, 0.5)
    scale = last + (first - last) * np.exp(-np.arange(trials) / learning)
    excess = scale * rng.lognormal(0.0, rng.uniform(0.6, 1.4), trials)
    floor = np.ones(trials)
    if rng.random() < 0.4:
        floor[: int(rng.integers(1, trials))] = rng.uniform(1.2, 2.0)
    times = floor + excess
    times[rng.random(trials) < 0.1] = np.inf
    return np.minimum.accumulate(np.concatenate([[start], times]))


def model_curves(rng: np.random.Generator, operators: int, trials: int, peak_flops: float) -> list[RecordedCurve]:
    """Curves of a whole model: a few heavy operators and many light ones, at 5 to 90 % of the peak when best."""
    curves = []
    for i in range(operators):
        flops = int(10 ** rng.uniform(6, 9))
        floor = flops / (peak_flops * rng.uniform(0.05, 0.9))
        best = floor * best_so_far(rng, trials)
        seconds = np.concatenate([[0.0], np.cumsum(rng.uniform(0.2, 0.6, trials))])
        curves.append(RecordedCurve(f"operator{i}", int(rng.integers(1, 5)), flops, seconds.tolist(), best.tolist()))
    return curves
