"""Ratios of contenders that ran in turns, rank correlation, cells with a median and its spread, and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

AS_FAST = 1.01  # as fast as: within one per cent
_RESAMPLES = 2000
Blocks = Sequence[Sequence[float | None]]
"""For every process, the median of each round, None if the contender did not take part."""


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; NaN if one of them is constant."""
    ranks = [_ranks(values) for values in (one, other)]
    if any(float(np.std(r)) == 0 for r in ranks):
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks from 0, equal values with the mean of theirs."""
    ordered = np.sort(np.asarray(values, dtype=float))
    low, high = np.searchsorted(ordered, values), np.searchsorted(ordered, values, side="right") - 1
    return np.asarray((low + high) / 2)


def ratios(ours: Blocks, theirs: Blocks) -> list[float]:
    """Latency of one to that of the other in the same round, all rounds of all processes."""
    return [ratio for process in _by_process(ours, theirs) for ratio in process]


def by_process(ours: Blocks, theirs: Blocks) -> list[float]:
    """The same, the median of each process."""
    return [median(process) for process in _by_process(ours, theirs)]


def _by_process(ours: Blocks, theirs: Blocks) -> list[list[float]]:
    processes = zip(ours, theirs, strict=True)
    return [[a / b for a, b in zip(*pair, strict=False) if a is not None and b is not None] for pair in processes]


def with_quartiles(values: Sequence[float], digits: int = 3) -> str:
    low, high = np.quantile(values, [0.25, 0.75])
    return _cell(values, low, high, digits)


def with_range(values: Sequence[float], digits: int = 3) -> str:
    return _cell(values, min(values), max(values), digits)


def _cell(values: Sequence[float], low: float, high: float, digits: int) -> str:
    middle = f"{median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({low:.{digits}f} - {high:.{digits}f})"


def geometric_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean, and where it lies in 95 of 100 cases by resampling the values."""
    logs = np.log(np.asarray(values, dtype=float))
    drawn = np.random.default_rng(0).choice(logs, size=(_RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return math.exp(float(logs.mean())), math.exp(float(low)), math.exp(float(high))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return lines + [f"| {' | '.join(map(str, row))} |" for row in rows]
