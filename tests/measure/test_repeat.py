"""Measuring again what a busy machine may have disturbed."""

from __future__ import annotations

import pytest

from slipstream.measure.timing.repeat import faster_of, must_repeat
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement

PROGRAM = Candidate("operator", "module")


def _measured(seconds: float, *, noisy: bool) -> Measurement:
    return Measurement(PROGRAM, samples=(seconds,) * 3, noisy=noisy, run_seconds=1.0)


def _repeat(results: list[Measurement], best: float | None) -> tuple[Measurement, int]:
    """What counts of `results`, taken as long as they have to be repeated, and how many were taken."""
    fastest: Measurement | None = None
    for runs, last in enumerate(results, start=1):
        fastest = faster_of(last, fastest)
        if not must_repeat(last, fastest, runs, best):
            return fastest, runs
    raise AssertionError("more runs than there are results")


@pytest.mark.parametrize(
    ("results", "best", "counts", "runs"),
    [
        ([(9, True), (5, False)], None, 5, 2),
        ([(9, True), (8, True), (7, True)], None, 7, 3),
        ([(5, True), (9, False)], None, 5, 2),
        ([(5, False)], None, 5, 1),
        ([(11, True), (8, False)], 10, 8, 2),
        ([(9, True)], 10, 9, 1),  # a new best although disturbed
        ([(20, True)], 10, 20, 1),  # far behind in any case
    ],
)
def test_the_fastest_counts_where_it_matters(results, best, counts, runs):
    found, taken = _repeat([_measured(float(seconds), noisy=noisy) for seconds, noisy in results], best)
    assert (found.median, found.run_seconds, taken) == (counts, runs, runs)


def test_what_fails_when_run_again_has_failed():
    failed = Measurement(PROGRAM, failure=Failure(FailureKind.WRONG_RESULT, "off by one"))
    assert _repeat([_measured(9.0, noisy=True), failed], None) == (failed, 2)
