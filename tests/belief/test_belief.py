"""Forecasts: calibrated, quick, never nonsense."""

from __future__ import annotations

import math
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.belief import Belief, BeliefError
from slipstream.belief.curves import FAMILIES
from slipstream.testing.synthetic import best_so_far

PEAK, FLOPS, SLOT = 1e11, 3e7, 16


def _belief(**options) -> Belief:
    return Belief(peak_flops=PEAK, slot_trials=SLOT, **options)


def _check(forecast, history) -> None:
    numbers = (forecast.best, forecast.mean, forecast.expected_improvement, forecast.high)
    assert all(math.isfinite(number) and number >= 0 for number in numbers), forecast
    assert forecast.best <= forecast.low <= forecast.high
    assert forecast.best <= forecast.mean * (1 + 1e-12)
    assert 0 <= forecast.latency_reduction < 1
    if not any(0 < seconds < math.inf for seconds in history):
        assert forecast.latency_reduction == 0


DEGENERATE = {
    "nothing": [],
    "one point": [1e-3],
    "all failed": [math.inf] * 50,
    "two equal": [1e-3, 1e-3],
    "flat": [1e-3] * 300,
    "a huge jump": [1e6] * 10 + [1e-9],
    "stairs": [0.5**i for i in range(60)],
    "late": [math.inf] * 20 + [2e-3, 1e-3],
    "thousands": (1e-3 * best_so_far(np.random.default_rng(0), 20_000)).tolist(),
    "faster than the peak": [1e-5, 1e-6],
    "beyond all measure": [1e-300, 1e-310],
    "zero": [0.0, 0.0],
    "not a number": [math.nan, 1e-3],
}


@pytest.mark.parametrize("curve", FAMILIES)
@pytest.mark.parametrize("flops", [FLOPS, 0])
def test_degenerate_histories_have_sensible_forecasts(curve, flops):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for history in DEGENERATE.values():
            _check(_belief(curve=curve).forecast("op", history, flops), history)


def test_degenerate_histories_do_not_trouble_the_ensemble_either():
    pytest.importorskip("emcee")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("one point", "flat", "a huge jump", "faster than the peak"):
            _check(_belief(sampler="emcee").forecast("op", DEGENERATE[name], FLOPS), DEGENERATE[name])


@given(
    st.lists(st.floats(0, 1e12, allow_subnormal=True) | st.just(math.inf), max_size=40),
    st.sampled_from([0.0, 1.0, 1e7, 1e12]),
    st.integers(1, 100),
)
@settings(max_examples=60, deadline=None)
def test_any_history_has_a_forecast(times, flops, slot_trials):
    history = np.minimum.accumulate(times).tolist() if times else []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _check(Belief(peak_flops=PEAK, slot_trials=slot_trials).forecast("op", history, flops), history)


@pytest.mark.parametrize("slot_trials", [8, 32])
def test_nine_in_ten_outcomes_lie_in_the_interval_and_gains_are_unbiased(slot_trials):
    """One slot ahead, at all stages of tuning, on synthetic curves."""
    belief = Belief(peak_flops=PEAK, slot_trials=slot_trials)
    rng = np.random.default_rng(2024)
    inside, expected, real = [], [], []
    for _ in range(50):
        history = 1e-3 * best_so_far(rng, 24 * slot_trials)
        for slots in (0, 1, 3, 8, 20):
            now, then = slots * slot_trials, (slots + 1) * slot_trials
            forecast = belief.forecast("op", history[: now + 1].tolist(), 10 ** rng.uniform(6.7, 7.9))
            outcome = forecast.best * history[now] / history[then]
            inside.append(forecast.low * (1 - 1e-9) <= outcome <= forecast.high * (1 + 1e-9))
            expected.append(forecast.latency_reduction)
            real.append(1 - history[then] / history[now])
    assert 0.80 <= np.mean(inside) <= 0.97
    assert np.mean(expected) == pytest.approx(np.mean(real), rel=0.35)


def test_the_longer_nothing_happens_the_less_is_expected():
    cuts = [_belief().forecast("op", [2e-3] + [1e-3] * n, FLOPS).latency_reduction for n in (4, 16, 64, 256)]
    assert cuts == sorted(cuts, reverse=True)
    assert cuts[-1] < 0.01


def test_the_peak_limits_the_forecast():
    near, far = (Belief(peak_flops=peak, slot_trials=SLOT).forecast("op", [1e-3], FLOPS) for peak in (3.2e10, 3e12))
    assert near.high <= 1.2 * near.best
    assert far.latency_reduction > near.latency_reduction


@pytest.mark.timing
def test_a_forecast_costs_less_than_20_ms():
    rng = np.random.default_rng(0)
    took = []
    for trials in (16, 100, 5000):
        history = (1e-3 * best_so_far(rng, trials)).tolist()
        began = time.process_time()
        _belief().forecast("op", history, FLOPS)
        took.append(time.process_time() - began)
    assert min(took) < 0.02


def test_equal_questions_have_equal_answers_and_the_seed_matters():
    history = (1e-3 * best_so_far(np.random.default_rng(1), 40)).tolist()
    belief = _belief(seed=1)
    first = belief.forecast("op", history, FLOPS)
    belief.forecast("other", history[:5], FLOPS)
    assert belief.forecast("op", history, FLOPS) == first
    assert _belief(seed=2).forecast("op", history, FLOPS).mean != first.mean


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampler": "nuts"}, "importance, emcee"),
        ({"slot_trials": 0}, "at least one trial"),
        ({"peak_flops": math.inf}, "peak_flops"),
        ({"peak_flops": -1.0}, "peak_flops"),
    ],
)
def test_mistakes_are_named(options, said):
    with pytest.raises(BeliefError, match=said):
        Belief(**{"peak_flops": PEAK, "slot_trials": SLOT, **options})
