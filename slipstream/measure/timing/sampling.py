"""Taking the samples of one program: the clock's side of racing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.measure.config import Racing
from slipstream.measure.timing.racing import Verdict, judge, runs_per_sample, samples_at_once

# A run that takes this long is not mistaken for another because of one hiccup.
_LONG_SECONDS = 0.02

Sample = Callable[[int, int], Sequence[float]]
"""(runs per sample, samples) -> seconds per run of each. A device may take fewer runs, if these are enough."""


@dataclass(frozen=True)
class Samples:
    seconds: tuple[float, ...]
    stopped_early: bool


def race(
    run: Callable[[], object],
    sample: Sample,
    first: float,
    best: float,
    racing: Racing,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Time a program whose first run took `first` seconds, against `best`, the median of its operator's best."""
    races = racing.rule == "racing"
    if races and first > max(_LONG_SECONDS, racing.hopeless * best):
        return Samples((first,), stopped_early=True)

    def seconds_of_a_run() -> float:
        start = clock()
        run()
        return clock() - start

    began = clock()
    warm = seconds_of_a_run()
    if warm < _LONG_SECONDS:
        warm = min(warm, seconds_of_a_run())  # one hiccup must not cost a short program its race
    if races and warm >= racing.sample_seconds and judge([warm], best, racing) is Verdict.WORSE:
        return Samples((warm,), stopped_early=True)
    number = runs_per_sample(warm, racing)
    seconds: list[float] = []
    while True:
        new = sample(number, samples_at_once(len(seconds), best, racing))
        if min(new) * number < racing.sample_seconds / 2 and number < runs_per_sample(min(new), racing):
            number = runs_per_sample(min(new), racing)
            continue
        seconds += new
        verdict = judge(seconds, best, racing, clock() - began)
        if verdict is not Verdict.GO_ON:
            return Samples(tuple(seconds), stopped_early=verdict is Verdict.WORSE)
