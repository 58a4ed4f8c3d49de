"""Measuring again what a busy machine may have spoiled."""

from __future__ import annotations

import pytest

from slipstream.measure.timing.repeat import look_again
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement

PROGRAM = Candidate("operator", "module")


def _measured(seconds: float, *, noisy: bool) -> Measurement:
    return Measurement(PROGRAM, samples=(seconds,) * 3, noisy=noisy, run_seconds=1.0)


@pytest.mark.parametrize(
    ("results", "best", "counts", "looks"),
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
def test_the_fastest_counts_where_it_matters(results, best, counts, looks):
    waiting = [_measured(float(seconds), noisy=noisy) for seconds, noisy in results]
    found = look_again(lambda: waiting.pop(0), best)
    assert (found.median, found.run_seconds, waiting) == (counts, looks, [])


def test_what_fails_when_run_again_has_failed():
    failed = Measurement(PROGRAM, failure=Failure(FailureKind.WRONG_RESULT, "off by one"))
    waiting = [_measured(9.0, noisy=True), failed]
    assert look_again(lambda: waiting.pop(0), None) is failed
