"""`Forecast`: the distribution of an operator's performance at the end of its next slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.belief.posterior import Posterior
from slipstream.belief.samples import Samples

Array = NDArray[np.float64]

OUTCOMES = 4000


@dataclass(frozen=True)
class Forecast:
    """Performance at the end of the coming slot, as a share of the target's peak; never below `best`.

    `low` and `high` enclose 90 %. `expected_improvement` is over `best`.
    """

    best: float
    mean: float
    expected_improvement: float
    low: float
    high: float

    @property
    def latency_reduction(self) -> float:
        """Expected relative reduction of the operator's latency in the slot: 1 - best / (best + improvement)."""
        after = self.best + self.expected_improvement
        return self.expected_improvement / after if after > 0 else 0.0


NOTHING = Forecast(0.0, 0.0, 0.0, 0.0, 0.0)


def forecast(posterior: Posterior, samples: Samples, best: float, rng: np.random.Generator) -> Forecast:
    """The distribution of the outcome: the best so far, plus the curve's growth, plus noise.

    A curve fitted to a step function runs through the middle of the steps, so only its growth over the slot is
    added to the best. An outcome below the best means no improvement. A sample of large weight is drawn many
    times, each time with its own noise: otherwise the noise of a few samples would dominate.
    """
    seen = posterior.seen
    outcome = outcomes(posterior, samples, seen.log_end, seen.noise_end, rng)
    mean = float(outcome.mean())
    low, high = (float(value) for value in np.quantile(outcome, (0.05, 0.95)))
    return Forecast(
        best=best,
        mean=best * mean,
        expected_improvement=best * (mean - 1),
        low=best * low,
        high=best * high,
    )


def outcomes(posterior: Posterior, samples: Samples, log_then: float, noise: float, rng: np.random.Generator) -> Array:
    """Draws of the performance at a later trial, given by its logarithm, in units of the best so far; `noise` is its
    scale there, relative to that of the first slot.
    """
    drawn = _systematic_draw(samples.weight, rng)
    scale = np.sqrt(posterior.squares(samples.theta))[drawn] * noise
    errors = scale / np.sqrt(rng.chisquare(posterior.freedom, OUTCOMES)) * rng.standard_normal(OUTCOMES)
    return np.clip(1 + posterior.growth(samples.theta, log_then)[drawn] + errors, 1.0, posterior.seen.ceiling)


def _systematic_draw(weight: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Indices drawn in proportion to `weight`, at even steps from a random start, which adds the least variance."""
    steps = (rng.random() + np.arange(OUTCOMES)) / OUTCOMES
    return np.minimum(np.searchsorted(np.cumsum(weight), steps), len(weight) - 1)
