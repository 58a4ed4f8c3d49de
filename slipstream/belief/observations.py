"""Turns an operator's history of best times into the weighted points a curve is fitted to.

Best-so-far curves are step functions: neighbouring points repeat each other, and steps grow smaller with time. Three
choices make the belief's intervals contain the truth as often as they say. A slot's worth of trials counts as one
observation, up to `MOST_SLOTS` of them; the noise falls with the square root of the number of slots; and at most
`MOST_POINTS` points, weighted by the trials they stand for, represent the segment, so that thousands of trials cost
no more than a few dozen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slipstream.belief.change_points import last_segment

Array = NDArray[np.float64]

MOST_POINTS = 32
# Asymptotes above this many times the best are not considered, even if the peak is higher: few operators are bound by
# arithmetic alone, and an unreachable peak would make every forecast too high.
MOST_GROWTH = 20.0
LEAST_GROWTH = 1.2
# More slots than this in one segment do not improve the forecast.
MOST_SLOTS = 40
# Far above any machine, far below where arithmetic overflows.
_FASTEST = 1e150


@dataclass(frozen=True)
class Observations:
    """Points of the last segment: performance `y` in units of the best so far, at log trial numbers `log_x`.

    `weight` is per point and sums up to about `count` observations. The forecast is for `log_end`, from `log_now`;
    `noise_end` is the scale of the noise there, relative to that of the first slot. `ceiling` is the highest
    performance possible.
    """

    log_x: Array
    y: Array
    weight: Array
    count: float
    log_now: float
    log_end: float
    noise_end: float
    ceiling: float


def performance(history: ArrayLike, flops: float, peak_flops: float) -> Array:
    """Best FLOP/s so far as a share of the peak, for each entry of a history of seconds; 0 where nothing worked.

    For an operator without FLOPs, or an unknown peak (0), it is the speed as a share of twice the best speed.
    """
    seconds = np.asarray(history, dtype=float)
    rate = np.zeros_like(seconds)
    with np.errstate(over="ignore"):
        np.divide(1.0, seconds, out=rate, where=np.isfinite(seconds) & (seconds > 0))
        rate = np.maximum.accumulate(np.minimum(rate, _FASTEST))
        if flops > 0 and peak_flops > 0:
            return np.minimum(rate * (flops / peak_flops), _FASTEST)
    return rate / (2 * rate[-1]) if rate.size and rate[-1] > 0 else rate


def observe(share: Array, slot_trials: int) -> Observations:
    """The points for a forecast one slot ahead. `share` is the operator's performance after 0, 1, ... trials."""
    best, now = float(share[-1]), len(share) - 1
    start = last_segment(share)
    at = _representatives(share, start)
    edges = np.concatenate([[start - 0.5], (at[1:] + at[:-1]) / 2, [now + 0.5]])
    slots = min((now + 1 - start) / slot_trials + 1, MOST_SLOTS)
    weight = slots * np.diff(edges) / (now + 1 - start)
    x = at + 1.0
    end = now + slot_trials
    return Observations(
        log_x=np.log(x),
        y=share[at] / best,
        weight=weight * (1 + x / slot_trials),
        count=slots,
        log_now=float(np.log(now + 1)),
        log_end=float(np.log(end + 1)),
        noise_end=(1 + (end + 1) / slot_trials) ** -0.5,
        ceiling=float(np.clip(1 / best, LEAST_GROWTH, MOST_GROWTH)),
    )


def _representatives(share: Array, start: int) -> NDArray[np.intp]:
    """Indices that represent the segment's shape: both ends of (some of) its steps, and some in between."""
    last = len(share) - 1
    steps = np.flatnonzero(np.diff(share[start:]) > 0) + start
    between = start + np.geomspace(1, last - start + 1, 12).astype(int) - 1
    at = np.unique(np.concatenate([[start, last], steps, steps + 1, between]))
    if len(at) > MOST_POINTS:
        at = at[np.unique(np.linspace(0, len(at) - 1, MOST_POINTS).astype(int))]
    return at
