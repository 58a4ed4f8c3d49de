"""The default sampler against the paper's, and both against brute force."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from slipstream.belief import ensemble, importance
from slipstream.belief.curves import FAMILIES
from slipstream.belief.forecast import forecast
from slipstream.belief.observations import observe
from slipstream.belief.posterior import Posterior
from slipstream.belief.samples import Samples
from slipstream.errors import MissingDependencyError
from slipstream.testing.synthetic import best_so_far

# How far a forecast of the default sampler may be from the truth: this share of it, or this share of the latency.
RELATIVE, ABSOLUTE = 0.15, 0.002


def _posterior(name: str, seed: int, trials: int) -> Posterior:
    share = 0.3 / best_so_far(np.random.default_rng(seed), 400)[: trials + 1]
    return Posterior(FAMILIES[name], observe(share, 16))


def _everywhere(posterior: Posterior, rng: np.random.Generator) -> Samples:
    """Brute force: even draws from the prior, weighted by the likelihood."""
    theta = posterior.low + rng.random((200_000, len(posterior.low))) * (posterior.high - posterior.low)
    log_weight = posterior.log_probability(theta)
    weight = np.exp(log_weight - log_weight.max())
    kept = weight > 1e-9
    return Samples(theta[kept], weight[kept] / weight[kept].sum())


def _cut(posterior: Posterior, samples: Samples) -> float:
    return forecast(posterior, samples, 1.0, np.random.default_rng(0)).latency_reduction


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("trials", [6, 60])
def test_importance_sampling_agrees_with_brute_force(name, trials):
    for seed in (1, 2):
        posterior = _posterior(name, seed, trials)
        truth = _cut(posterior, _everywhere(posterior, np.random.default_rng(9)))
        drawn = importance.sample(posterior, np.random.default_rng(seed))
        assert _cut(posterior, drawn) == pytest.approx(truth, rel=RELATIVE, abs=ABSOLUTE)
        assert 1 / (drawn.weight @ drawn.weight) > 10, "effective samples"
        assert drawn.weight.sum() == pytest.approx(1)


@pytest.mark.parametrize(("name", "trials"), [("log_power", 6), ("log_power", 100), ("pow2", 30), ("pow4", 30)])
def test_importance_sampling_agrees_with_a_long_ensemble(name, trials):
    posterior = _posterior(name, 3, trials)
    pytest.importorskip("emcee")
    chain = ensemble.sample(posterior, np.random.default_rng(0), walkers=32, steps=2000, kept=50_000)
    drawn = importance.sample(posterior, np.random.default_rng(0))
    assert _cut(posterior, drawn) == pytest.approx(_cut(posterior, chain), rel=RELATIVE, abs=ABSOLUTE)


def test_the_papers_ensemble_is_the_default_and_reports_how_it_went():
    pytest.importorskip("emcee")
    posterior = _posterior("log_power", 4, 40)
    chain = ensemble.sample(posterior, np.random.default_rng(0))
    assert chain.theta.shape == (200, 3)
    assert 0.2 < chain.acceptance < 0.8
    again = ensemble.sample(posterior, np.random.default_rng(0))
    np.testing.assert_array_equal(chain.theta, again.theta)
    # 200 correlated samples of ten walkers know the gain only roughly.
    drawn = importance.sample(posterior, np.random.default_rng(0))
    assert _cut(posterior, chain) == pytest.approx(_cut(posterior, drawn), rel=0.6, abs=0.01)


def test_without_emcee_the_reference_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "emcee", None)
    with pytest.raises(MissingDependencyError, match="pip install emcee"):
        ensemble.sample(_posterior("pow2", 0, 4), np.random.default_rng(0))
