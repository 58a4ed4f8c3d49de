"""When enough is known about a program. Pure decisions on samples: no clocks, no TVM."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from statistics import fmean, pstdev

from slipstream.measure.config import Racing
from slipstream.statistics import median_interval


class Verdict(Enum):
    """What to do after a sample."""

    GO_ON = "go on"
    ENOUGH = "enough"
    WORSE = "worse"


def judge(samples: Sequence[float], best: float, racing: Racing, spent: float = 0.0) -> Verdict:
    """Whether to take another sample, given the median of the operator's best program and the seconds spent."""
    races = racing.rule == "racing"
    if races and samples and min(samples) > best * (1 + slack_after(len(samples), racing)):
        return Verdict.WORSE
    if len(samples) >= racing.most_samples or (samples and spent >= racing.most_seconds):
        return Verdict.ENOUGH
    if len(samples) < racing.least_samples or racing.rule == "fixed":
        return Verdict.GO_ON
    if not races:
        return Verdict.ENOUGH if variation(samples) < racing.variation else Verdict.GO_ON
    interval = median_interval(samples)
    if best < inf and interval.low > best * (1 + racing.matters):
        return Verdict.WORSE
    return Verdict.ENOUGH if interval.relative_width <= racing.precision else Verdict.GO_ON


def slack_after(samples: int, racing: Racing) -> float:
    """How much slower than the best all of so many samples must be to give a program up."""
    return racing.slack[samples - 1] if samples <= len(racing.slack) else racing.matters


def variation(samples: Sequence[float]) -> float:
    """Coefficient of variation of the samples' rates, as AdaTune has it: without the extremes if more than four."""
    rates = sorted(1 / seconds for seconds in samples)
    rates = rates[1:-1] if len(rates) > 4 else rates
    return pstdev(rates) / fmean(rates)


def samples_at_once(taken: int, best: float, racing: Racing) -> int:
    """How many samples to take before the next verdict; each call of the timer costs a run that is not counted."""
    if racing.rule == "racing":
        return 1 if not taken and best < inf else 2  # a single first sample can decide
    return max(1, racing.least_samples - taken) if racing.rule == "adatune" else 5


def runs_per_sample(seconds_per_run: float, racing: Racing) -> int:
    """How many runs a sample averages, so that the clock and the call do not show in it."""
    return max(1, min(1000, round(racing.sample_seconds / max(seconds_per_run, 1e-7))))
