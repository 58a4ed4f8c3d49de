"""From seconds to points: normalised by the peak, compressed, weighted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slipstream.belief.observations import LEAST_GROWTH, MOST_POINTS, observe, performance


@pytest.mark.parametrize(
    ("history", "flops", "peak", "expected"),
    [
        ([2.0, 1.0], 1e9, 1e10, [0.05, 0.1]),
        ([math.inf, 1.0], 1e9, 1e10, [0.0, 0.1]),
        ([math.nan, 1.0], 1e9, 1e10, [0.0, 0.1]),
        ([1.0, 2.0], 1e9, 1e10, [0.1, 0.1]),
        ([2.0, 1.0], 0, 1e10, [0.25, 0.5]),
        ([2.0, 1.0], 1e9, 0, [0.25, 0.5]),
        ([math.inf], 0, 1e10, [0.0]),
    ],
)
def test_performance_is_the_share_of_the_peak(history, flops, peak, expected):
    np.testing.assert_allclose(performance(history, flops, peak), expected)


def test_thousands_of_trials_become_a_few_points_that_stand_for_all():
    rng = np.random.default_rng(0)
    share = np.maximum.accumulate(rng.random(5000)) * 0.01 + 0.5
    seen = observe(share, slot_trials=500)
    assert len(seen.y) <= MOST_POINTS
    assert seen.y[-1] == 1
    # Without the growing precision, weights are trials in units of slots: 5000 / 500, and one for good measure.
    assert sum(seen.weight / (1 + np.exp(seen.log_x) / 500)) == pytest.approx(11)
    assert seen.count == pytest.approx(11)


def test_only_the_last_segment_counts():
    share = np.array([0.1] * 50 + [0.2] * 10)
    np.testing.assert_array_equal(observe(share, 16).y, np.ones(len(observe(share, 16).y)))
    assert min(observe(share, 16).log_x) == pytest.approx(math.log(51))


def test_the_ceiling_is_the_peak():
    assert observe(np.array([0.25]), 16).ceiling == pytest.approx(4)
    assert observe(np.array([1.5]), 16).ceiling == LEAST_GROWTH
