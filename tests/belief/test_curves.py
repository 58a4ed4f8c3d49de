"""The curve families: the paper's formulas, increasing, with right derivatives."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.belief.curves import FAMILIES, CurveFamilyError, family

LOG_END = np.log(80.0)
LOG_X = np.log([1.0, 2, 5, 17, 64])


def _draws(name: str, count: int = 20):
    low, high = FAMILIES[name].bounds(5.0, LOG_END)
    return low + (high - low) * np.random.default_rng(1).random((count, len(low)))


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("log_power", lambda x, a, v, b, c: a / (1 + (x / np.exp(b)) ** -np.exp(c))),
        ("pow2", lambda x, a, v, b: a * x**b),
        ("pow4", lambda x, c, v, a, b, alpha: c - (np.exp(a) * x + b) ** -np.exp(alpha)),
        ("log_linear", lambda x, b, v, a: a * np.log(x) + b),
    ],
)
def test_a_curve_is_the_papers_formula_with_its_level_fixed_by_the_value_at_the_end(name, formula):
    """The level (factor or offset) is solved for from the value at the end; the rest must then agree everywhere."""
    for theta in _draws(name):
        ends = [formula(80.0, level, *theta) for level in (1.0, 2.0)]
        level = 1 + (np.exp(theta[0]) - ends[0]) / (ends[1] - ends[0])
        expected = formula(np.exp(LOG_X), level, *theta)
        np.testing.assert_allclose(FAMILIES[name].value(theta, LOG_X, LOG_END), expected, rtol=1e-9, atol=1e-9)


def test_log_log_linear_is_the_logarithm_of_a_line_in_log_x():
    for theta in _draws("log_log_linear"):
        line = np.exp(FAMILIES["log_log_linear"].value(theta, LOG_X, LOG_END))
        slopes = np.diff(line) / np.diff(LOG_X)
        np.testing.assert_allclose(slopes, slopes[0], rtol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_curves_rise_to_the_value_at_the_end(name):
    theta = _draws(name, 200)
    values = FAMILIES[name].value(theta, np.append(LOG_X, LOG_END), LOG_END)
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(values) >= -1e-12)
    np.testing.assert_allclose(values[:, -1], np.exp(theta[:, 0]))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_jacobian_is_the_derivative(name):
    curve = FAMILIES[name]
    theta = _draws(name)
    jacobian = curve.jacobian(theta, LOG_X, LOG_END)
    for i in range(theta.shape[1]):
        step = np.zeros(theta.shape[1])
        step[i] = 1e-6
        slope = (curve.value(theta + step, LOG_X, LOG_END) - curve.value(theta - step, LOG_X, LOG_END)) / 2e-6
        np.testing.assert_allclose(jacobian[..., i], slope, rtol=1e-4, atol=1e-6)


def test_an_unknown_family_is_named_with_the_known_ones():
    with pytest.raises(CurveFamilyError, match="log_power, pow2"):
        family("exp3")
