"""A disturbed measurement that matters is repeated: the program is built and loaded, so that costs little."""

from __future__ import annotations

from dataclasses import replace

from slipstream.measure.types import Measurement

_MOST_RUNS = 3
_PROMISING = 1.15  # times the best: a disturbance can have hidden a new best behind this


def must_repeat(last: Measurement, fastest: Measurement, runs: int, best: float | None) -> bool:
    """Whether to run a program again after `runs` runs: the machine was busy in the last one, and it matters.

    A disturbance in the first program of an operator, when there is no `best` yet, makes every later one look like
    a gain; one in a new best hides it.
    """
    if last.failure is not None or not last.noisy or runs >= _MOST_RUNS:
        return False
    return best is None or best < fastest.median <= _PROMISING * best


def faster_of(last: Measurement, before: Measurement | None) -> Measurement:
    """The faster of two measurements of a program, with the time of both runs: disturbances only make it slower.

    A program that fails when repeated has failed.
    """
    if before is None or last.failure is not None:
        return last
    spent = before.run_seconds + last.run_seconds
    return replace(min(last, before, key=lambda m: m.median), run_seconds=spent)
