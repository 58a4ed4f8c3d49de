"""The published belief: its curves by the paper's formulas, its sampler against emcee, its forecasts by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from slipstream.belief.curves import CurveFamilyError
from slipstream.belief.published import CURVES, Prediction, PublishedBelief, ensemble, least_squares

FORMULAS = {
    "log_power": (lambda x, a, b, c: a / (1 + (x / math.exp(b)) ** c), (0.5, 2.0, -0.7)),
    "pow2": (lambda x, a, b: a * x**b, (0.2, 0.1)),
    "pow4": (lambda x, a, b, c, alpha: c - (a * x + b) ** -alpha, (0.3, 2.0, 0.6, 0.5)),
    "log_linear": (lambda x, a, b: a * math.log(x) + b, (0.05, 0.2)),
    "log_log_linear": (lambda x, a, b: math.log(a * math.log(x) + b), (0.1, 1.2)),
}
BELIEF = PublishedBelief(peak_flops=1.0, slot_trials=16)


def seconds(share: NDArray[np.float64]) -> list[float]:
    """The history of an operator with one FLOP on a machine with a peak of one FLOP/s."""
    return list(1 / share)


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_the_papers_formula_and_its_parameters_are_found_again(name: str) -> None:
    formula, theta = FORMULAS[name]
    x = np.arange(1.0, 80.0)
    y = np.array([formula(value, *theta) for value in x])
    assert CURVES[name].value(np.array(theta), np.log(x)) == pytest.approx(y)
    start = CURVES[name].start(float(y[-1]), math.log(80))
    fitted = least_squares(CURVES[name], np.array(start), np.log(x), y)
    assert CURVES[name].value(fitted, np.log(x)) == pytest.approx(y, rel=0.03)


def test_the_ensemble_samples_what_it_is_given_as_emcee_does() -> None:
    """A correlated Gaussian: mean and covariance are known."""
    precision = np.linalg.inv([[1.0, 0.8], [0.8, 2.0]])

    def log_probability(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        off = theta - [3.0, -1.0]
        return np.asarray(-0.5 * np.einsum("ij,jk,ik->i", off, precision, off))

    start = np.random.default_rng(0).normal(size=(10, 2))
    chain = ensemble(log_probability, start, 1500, np.random.default_rng(1))[1000:]
    assert chain.mean(axis=0) == pytest.approx([3.0, -1.0], abs=0.2)
    assert np.cov(chain.T) == pytest.approx(np.array([[1.0, 0.8], [0.8, 2.0]]), abs=0.4)
    emcee = pytest.importorskip("emcee")
    theirs = emcee.EnsembleSampler(10, 2, log_probability, vectorize=True)
    theirs.run_mcmc(emcee.State(start, random_state=np.random.RandomState(2).get_state()), 1500)
    moved = float((np.diff(chain.reshape(-1, 10, 2), axis=0) != 0).any(axis=-1).mean())
    assert moved == pytest.approx(float(np.mean(theirs.acceptance_fraction)), abs=0.05)


def test_the_expected_improvement_is_that_of_a_gaussian_cut_off_at_the_best() -> None:
    prediction = Prediction(best=0.3, mean=0.28, deviation=0.05)
    normal = stats.norm(0.28, 0.05)
    assert prediction.expected_improvement == pytest.approx(normal.expect(lambda y: y - 0.3, lb=0.3), rel=1e-6)
    after = 0.3 + prediction.expected_improvement
    assert prediction.latency_reduction == pytest.approx(1 - 0.3 / after)
    assert Prediction(0.3, 0.3, 0.0).latency_reduction == 0


def test_a_rising_curve_promises_more_than_a_flat_one_and_nothing_is_below_the_best() -> None:
    x = np.arange(1.0, 50.0)
    rising = BELIEF.predict("a", seconds(0.05 * x**0.5), 1.0)
    flat = BELIEF.predict("a", seconds(np.full(49, 0.35)), 1.0)
    assert rising.mean > rising.best == pytest.approx(0.35)
    assert flat.mean >= flat.best
    assert rising.latency_reduction > 10 * flat.latency_reduction
    assert rising == BELIEF.predict("a", seconds(0.05 * x**0.5), 1.0)


def test_the_forecast_of_a_curve_without_noise_is_its_continuation() -> None:
    formula, theta = FORMULAS["log_power"]
    share = np.array([formula(x, *theta) for x in np.arange(1.0, 61.0)])
    ahead = BELIEF.predict("a", seconds(share), 1.0)
    assert ahead.mean == pytest.approx(formula(60 + 16, *theta), rel=0.02)


def test_only_what_comes_after_a_jump_is_fitted() -> None:
    after = np.full(30, 0.3)
    before = [0.1 * (1 + 0.005 * n) for n in range(30)]
    jumped = BELIEF.predict("a", seconds(np.array([*before, *after])), 1.0)
    assert jumped.latency_reduction < 0.01


@pytest.mark.parametrize("history", [[], [math.inf], [math.inf, math.inf], [2.0], [math.inf, 2.0], [0.9, 0.9]])
def test_short_histories_are_no_trouble(history: list[float]) -> None:
    assert 0 <= BELIEF.predict("a", history, 1.0).latency_reduction < 1


def test_an_unknown_curve_is_refused() -> None:
    with pytest.raises(CurveFamilyError, match="choose one of log_power, pow2, pow4, log_linear, log_log_linear"):
        PublishedBelief(peak_flops=1.0, slot_trials=16, curve="exp3")
