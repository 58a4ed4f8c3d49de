"""The default sampler: adaptive importance sampling; the same forecasts as the ensemble in a fraction of its time.

The posterior has two to four parameters in a box and is cheap to evaluate for hundreds of them at once, where a
chain needs a thousand evaluations one after another. So: draws spread evenly over the box; draws around the least
squares fit, as wide as its curvature; then, in rounds, draws around the weighted mean of all those before. Each
draw is weighted by the posterior over the density of the mixture it could have come from (the balance heuristic), so
that a bad round costs efficiency but adds no bias, and the even draws keep the weights bounded.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from slipstream.belief.least_squares import fit
from slipstream.belief.posterior import Posterior
from slipstream.belief.samples import Samples

Array = NDArray[np.float64]

EVEN_DRAWS, NEAR_DRAWS, ROUNDS = 512, 320, 4
# A round's proposal is made from weights tempered to this many effective draws: a few draws of high weight must not
# concentrate the next round on themselves.
_WORTH = 60
# The fit is no more than the centre of the first proposal.
_NEAR = 1e-2
# Tails heavier than the posterior's.
_FREEDOM = 5


def sample(posterior: Posterior, rng: np.random.Generator) -> Samples:
    """Weighted draws from the posterior."""
    theta = _low_discrepancy(posterior, rng)
    logp = posterior.log_probability(theta)
    box = EVEN_DRAWS / float(np.prod(posterior.high - posterior.low))
    proposals = [_around_fit(posterior, theta[np.argmax(logp)])]
    density = box + NEAR_DRAWS * proposals[0].density(theta)
    while True:
        drawn = proposals[-1].draw(rng, NEAR_DRAWS)
        density = np.concatenate([density, box + NEAR_DRAWS * sum(p.density(drawn) for p in proposals)])
        theta = np.concatenate([theta, drawn])
        logp = np.concatenate([logp, posterior.log_probability(drawn)])
        log_weight = logp - np.log(density)
        if len(proposals) == ROUNDS:
            break
        proposals.append(_around_mean(posterior, theta, _tempered(log_weight)))
        density += NEAR_DRAWS * proposals[-1].density(theta)
    weight = _normalised(log_weight)
    kept = weight > 0
    return Samples(theta[kept], weight[kept])


def _low_discrepancy(posterior: Posterior, rng: np.random.Generator) -> Array:
    """Points spread over the box more evenly than random ones: multiples of irrational steps, shifted at random."""
    size = len(posterior.low)
    # The root of g^(d+1) = g + 1 generalises the golden ratio to d dimensions.
    golden = 2.0
    for _ in range(30):
        golden = (1 + golden) ** (1 / (size + 1))
    steps = golden ** -np.arange(1.0, size + 1)
    unit = (rng.random(size) + np.arange(EVEN_DRAWS)[:, None] * steps) % 1
    return posterior.low + unit * (posterior.high - posterior.low)


def _around_fit(posterior: Posterior, start: Array) -> _StudentT:
    """A proposal with the covariance of the Laplace approximation at the least squares fit."""
    centre = fit(posterior, start, _NEAR)
    jacobian = posterior.jacobian(centre)
    variance = float(posterior.squares(centre)) / posterior.freedom
    precision = (jacobian * posterior.seen.weight[:, None]).T @ jacobian / variance
    precision += np.diag(12 / (posterior.high - posterior.low) ** 2)
    return _StudentT(centre, _regularised(posterior, np.linalg.inv(precision).astype(float)))


def _around_mean(posterior: Posterior, theta: Array, weight: Array) -> _StudentT:
    """A proposal with the mean and covariance of the weighted draws."""
    centre = weight @ theta
    apart = theta - centre
    return _StudentT(centre, _regularised(posterior, apart.T @ (apart * weight[:, None])))


def _regularised(posterior: Posterior, covariance: Array) -> Array:
    """The covariance with a small amount added to its diagonal, so that it can always be factored."""
    floor = (1e-4 * (posterior.high - posterior.low)) ** 2
    return covariance + np.diag(floor)


def _normalised(log_weight: Array) -> Array:
    """Weights that sum up to one; even ones if no draw is possible at all."""
    highest = float(np.max(log_weight))
    if not math.isfinite(highest):
        return np.full(len(log_weight), 1 / len(log_weight))
    weight = np.exp(log_weight - highest)
    return np.asarray(weight / weight.sum())


def _effective(weight: Array) -> float:
    return float(1 / (weight @ weight))


def _tempered(log_weight: Array) -> Array:
    """Weights to a power between 0 and 1: the highest of a few that leaves enough effective draws."""
    power = 1.0
    weight = _normalised(log_weight)
    while _effective(weight) < _WORTH and power > 1e-3:
        power /= 2
        weight = _normalised(power * log_weight)
    return weight


class _StudentT:
    """The multivariate t distribution with `_FREEDOM` degrees of freedom."""

    def __init__(self, centre: Array, covariance: Array) -> None:
        self.centre = centre
        self.root = np.linalg.cholesky(covariance)
        self.inverse = np.linalg.inv(self.root)
        size = len(centre)
        self.log_constant = (
            math.lgamma((_FREEDOM + size) / 2)
            - math.lgamma(_FREEDOM / 2)
            - size / 2 * math.log(_FREEDOM * math.pi)
            - float(np.log(np.diag(self.root)).sum())
        )

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        normal = rng.standard_normal((count, len(self.centre)))
        return self.centre + normal @ self.root.T / np.sqrt(rng.chisquare(_FREEDOM, (count, 1)) / _FREEDOM)

    def density(self, theta: Array) -> Array:
        scaled = (theta - self.centre) @ self.inverse.T
        distance = np.einsum("ij,ij->i", scaled, scaled)
        power = -(_FREEDOM + len(self.centre)) / 2
        return np.asarray(np.exp(self.log_constant + power * np.log1p(distance / _FREEDOM)))
