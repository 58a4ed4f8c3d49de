"""The paper's sampler, reference for the default one: Goodman and Weare's affine-invariant ensemble, by emcee."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.belief.least_squares import fit
from slipstream.belief.posterior import Posterior
from slipstream.belief.samples import Samples
from slipstream.errors import MissingDependencyError

Array = NDArray[np.float64]

WALKERS, STEPS, KEPT = 10, 500, 200
_BALL = 1e-2


def sample(
    posterior: Posterior, rng: np.random.Generator, walkers: int = WALKERS, steps: int = STEPS, kept: int = KEPT
) -> Samples:
    """The last `kept` samples of an ensemble that starts in a tight ball around the least squares fit."""
    try:
        import emcee  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise MissingDependencyError("the sampler 'emcee' needs the package emcee: pip install emcee") from None
    size = len(posterior.low)
    state = np.random.RandomState(int(rng.integers(2**31))).get_state()
    sampler = emcee.EnsembleSampler(walkers, size, posterior.log_probability, vectorize=True)
    # emcee refuses a start it takes for linearly dependent; a ball in a box that is narrow in one direction looks so.
    sampler.run_mcmc(
        emcee.State(_ball(posterior, rng, walkers), random_state=state), steps, skip_initial_state_check=True
    )
    theta = sampler.get_chain(flat=True)[-kept:]
    return Samples(theta, np.full(len(theta), 1 / len(theta)), float(np.mean(sampler.acceptance_fraction)))


def _ball(posterior: Posterior, rng: np.random.Generator, walkers: int) -> Array:
    """Starting points near the fit, reflected at the bounds, for walkers on one bound could never leave it."""
    width = posterior.high - posterior.low
    centre = fit(posterior, posterior.low + width / 2)
    off = (centre - posterior.low) / width + _BALL * rng.standard_normal((walkers, len(width)))
    return np.asarray(posterior.low + width * (1 - np.abs(1 - np.abs(off))))
