"""Figures of many requests: quantiles, throughput, processor time, and ratios between contenders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.artifact.request_pattern import Block
from slipstream.statistics import median_ranks

_RESAMPLES = 2000
_RESAMPLES_P99 = 500  # each looks at every request


@dataclass(frozen=True)
class Timing:
    """Requests of one contender: seconds each took (median with its 95 % interval, 90th and 99th percentile)."""

    name: str
    median: float
    low: float
    high: float
    runs: int  # requests that were timed
    p90: float
    p99: float
    requests_per_second: float
    processor_seconds: float  # user and system time of its process, per request
    setting: str = ""  # the one of the runtime's settings that was fastest in this pattern
    unserved: int = 0  # requests that arrived faster than they could be served


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """How many times faster the artifact is than `against` (above one: faster), with its 95 % interval.

    With several callers also how many times as many requests a second it answers, and how many times as long as the
    other's the slowest hundredth of its calls takes.
    """

    against: str
    median: float
    low: float
    high: float
    requests: Interval | None = None
    p99: Interval | None = None


def timing_of(name: str, blocks: Sequence[Block], setting: str = "") -> Timing:
    samples = np.sort(np.concatenate([block.latencies for block in blocks]))
    low, high = median_ranks(len(samples))
    unserved = sum(block.unserved for block in blocks)
    served = len(samples) - unserved
    p90, p99 = np.quantile(samples, [0.9, 0.99])
    return Timing(
        name,
        float(np.median(samples)),
        float(samples[low]),
        float(samples[high]),
        len(samples),
        float(p90),
        float(p99),
        _rate(blocks),
        sum(block.processor_seconds for block in blocks) / max(served, 1),
        setting,
        unserved,
    )


def ratio_of(name: str, ours: Sequence[Block], theirs: Sequence[Block], callers: int = 1) -> Ratio:
    """Ratio of medians. Bootstrap over rounds: requests of one block share the state the machine is in."""
    a = np.array([np.median(block.latencies) for block in ours])
    b = np.array([np.median(block.latencies) for block in theirs])
    picks = np.random.default_rng(0).integers(0, len(a), (_RESAMPLES, len(a)))
    median = _interval(np.median(b) / np.median(a), np.median(b[picks], axis=1) / np.median(a[picks], axis=1))
    requests = p99 = None
    if callers > 1:
        requests = _interval(_rate(ours) / _rate(theirs), [_rate(ours, p) / _rate(theirs, p) for p in picks])
        p99 = _interval(_p99(ours) / _p99(theirs), [_p99(ours, p) / _p99(theirs, p) for p in picks[:_RESAMPLES_P99]])
    return Ratio(name, median.value, median.low, median.high, requests, p99)


def _interval(value: float, resampled: Sequence[float]) -> Interval:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Interval(float(value), float(low), float(high))


def _rate(blocks: Sequence[Block], picks: Iterable[int] | None = None) -> float:
    """Requests a second of all blocks, or of those picked."""
    chosen = blocks if picks is None else [blocks[i] for i in picks]
    return sum(len(block.latencies) - block.unserved for block in chosen) / sum(block.seconds for block in chosen)


def _p99(blocks: Sequence[Block], picks: Iterable[int] | None = None) -> float:
    chosen = blocks if picks is None else [blocks[i] for i in picks]
    return float(np.quantile(np.concatenate([block.latencies for block in chosen]), 0.99))
