"""When enough is known about a program. Pure decisions on samples: no clocks, no TVM."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf

from slipstream.measure.config import Racing
from slipstream.statistics import median_interval


class Verdict(Enum):
    """What to do after a sample."""

    GO_ON = "go on"
    ENOUGH = "enough"
    WORSE = "worse"


def judge(samples: Sequence[float], best: float, racing: Racing, spent: float = 0.0) -> Verdict:
    """Whether to take another sample, given the median of the operator's best program and the seconds spent."""
    if samples and min(samples) > best * (1 + slack_after(len(samples), racing)):
        return Verdict.WORSE
    if len(samples) >= racing.most_samples or (samples and spent >= racing.most_seconds):
        return Verdict.ENOUGH
    if len(samples) < racing.least_samples:
        return Verdict.GO_ON
    interval = median_interval(samples)
    if best < inf and interval.low > best * (1 + racing.matters):
        return Verdict.WORSE
    return Verdict.ENOUGH if interval.relative_width <= racing.precision else Verdict.GO_ON


def slack_after(samples: int, racing: Racing) -> float:
    """How much slower than the best all of so many samples must be to give a program up."""
    return racing.slack[samples - 1] if samples <= len(racing.slack) else racing.matters


def runs_per_sample(seconds_per_run: float, racing: Racing) -> int:
    """How many runs a sample averages, so that the clock and the call do not show in it."""
    return max(1, min(1000, round(racing.sample_seconds / max(seconds_per_run, 1e-7))))
