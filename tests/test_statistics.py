from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from slipstream.statistics import median, median_interval, median_ranks


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 20, 101, 499, 2000])
def test_ranks_enclose_the_median_as_often_as_stated(count: int) -> None:
    low, high = median_ranks(count)
    covered = float(stats.binom.cdf(high, count, 0.5) - stats.binom.cdf(low, count, 0.5))
    assert covered >= 0.95 or (low, high) == (0, count - 1)
    if count >= 20:
        narrower = float(stats.binom.cdf(high - 2, count, 0.5) - stats.binom.cdf(low + 2, count, 0.5))
        assert narrower < 0.95


def test_the_interval_covers_the_median_of_a_skewed_distribution() -> None:
    rng = np.random.default_rng(0)
    truth = np.log(2)
    intervals = [median_interval(rng.exponential(1.0, 25).tolist()) for _ in range(1000)]
    assert np.mean([i.low <= truth <= i.high for i in intervals]) > 0.94


def test_median() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
