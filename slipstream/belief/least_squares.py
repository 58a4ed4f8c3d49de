"""Non-linear least squares within bounds: the starting point of the samplers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.belief.posterior import Posterior

Array = NDArray[np.float64]

_STEPS, _ENOUGH = 30, 1e-6


def fit(posterior: Posterior, start: Array) -> Array:
    """Parameters of the least weighted sum of squares, by Levenberg and Marquardt's method from `start`.

    A step is cut at the bounds. The result is a local minimum, never worse than `start`.
    """
    seen = posterior.seen
    theta = np.clip(start, posterior.low, posterior.high)
    error, damping = float(posterior.squares(theta)), 1e-3
    for _ in range(_STEPS):
        jacobian = posterior.jacobian(theta)
        weighted = jacobian * seen.weight[:, None]
        normal = weighted.T @ jacobian
        slope = weighted.T @ (seen.y - posterior.values(theta))
        # A parameter at its bound whose step points outside is fixed, or it would distort the step of the others.
        held = ((theta <= posterior.low) & (slope < 0)) | ((theta >= posterior.high) & (slope > 0))
        free = np.flatnonzero(~held)
        if not free.size:
            break
        damped = normal[np.ix_(free, free)]
        damped.flat[:: free.size + 1] *= 1 + damping
        damped.flat[:: free.size + 1] += 1e-12
        step = np.zeros_like(theta)
        step[free] = np.linalg.solve(damped, slope[free])
        trial = np.clip(theta + step, posterior.low, posterior.high)
        trial_error = float(posterior.squares(trial))
        if trial_error < error:
            done = error - trial_error < _ENOUGH * error
            theta, error, damping = trial, trial_error, max(damping / 5, 1e-9)
            if done:
                break
        elif damping > 1e6:
            break
        else:
            damping *= 5
    return theta
