"""A disturbed measurement that matters is taken again: the program is built and loaded, so that costs little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slipstream.measure.types import Measurement

_MOST_LOOKS = 3
_PROMISING = 1.15  # times the best: what a disturbance can have hidden a new best behind


def look_again(measure: Callable[[], Measurement], best: float | None) -> Measurement:
    """Measure; once or twice more while the machine was busy and the result matters. The fastest counts.

    Disturbances only ever make a program slower. One that hits the first program of an operator, when there is no
    `best` yet, makes every later one look like a gain; one that hits a new best hides it.
    """
    found = last = measure()
    for _ in range(_MOST_LOOKS - 1):
        if last.failure is not None or not last.noisy or not _matters(found, best):
            break
        last = measure()
        if last.failure is not None:
            return last
        spent = found.run_seconds + last.run_seconds
        found = replace(min(last, found, key=lambda m: m.median), run_seconds=spent)
    return found


def _matters(measurement: Measurement, best: float | None) -> bool:
    return best is None or best < measurement.median <= _PROMISING * best
