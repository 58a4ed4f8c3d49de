"""Posterior probability of a curve's parameters given the measurements (DynaTune, section 4.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.belief.curves import CurveFamily
from slipstream.belief.observations import Observations

Array = NDArray[np.float64]

# The prior of the noise is 5 % of the best performance, with the weight of one slot.
PRIOR_NOISE, PRIOR_SLOTS = 0.05, 1.0


class Posterior:
    """The posterior of a curve's parameters, up to a constant.

    The noise is Gaussian of unknown size: with an inverse gamma prior its variance integrates out, which leaves
    `-freedom / 2 * log(sum of squares)`. The prior of the parameters is uniform between the family's bounds, the
    lowest of which is that the slot cannot end below the best already measured.
    """

    def __init__(self, family: CurveFamily, seen: Observations) -> None:
        self.family, self.seen = family, seen
        self.low, self.high = family.bounds(seen.ceiling, seen.log_end)
        self.freedom = seen.count + PRIOR_SLOTS

    def log_probability(self, theta: Array) -> Array:
        """For each row of `theta`."""
        inside = np.all((theta >= self.low) & (theta <= self.high), axis=-1)
        squares = self.squares(np.clip(theta, self.low, self.high))
        return np.where(inside, -self.freedom / 2 * np.log(squares), -np.inf)

    def squares(self, theta: Array) -> Array:
        """The weighted sum of squared errors, the prior's share included."""
        errors = self.values(theta) - self.seen.y
        return np.asarray(PRIOR_SLOTS * PRIOR_NOISE**2 + errors**2 @ self.seen.weight)

    def values(self, theta: Array) -> Array:
        """The curve at the points seen."""
        return self.family.value(theta, self.seen.log_x, self.seen.log_end)

    def jacobian(self, theta: Array) -> Array:
        """Derivatives of `values`, a column for each parameter."""
        return self.family.jacobian(theta, self.seen.log_x, self.seen.log_end)

    def growth(self, theta: Array, log_then: float) -> Array:
        """By how much the curve rises from now until the trial of that logarithm."""
        values = self.family.value(theta, np.array([self.seen.log_now, log_then]), self.seen.log_end)
        return np.maximum(values[..., 1] - values[..., 0], 0.0)
