"""Non-linear least squares within bounds: the starting point of the samplers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.belief.posterior import Posterior

Array = NDArray[np.float64]

_STEPS = 30


def fit(posterior: Posterior, start: Array, enough: float = 1e-6) -> Array:
    """Parameters of the least weighted sum of squares, by Levenberg and Marquardt's method from `start`.

    A step is cut at the bounds; the last is the one that gains less than the share `enough`. The result is near a local
    minimum, never worse than `start`.
    """
    seen = posterior.seen
    theta = np.clip(start, posterior.low, posterior.high)
    error, damping, moved = float(posterior.squares(theta)), 1e-3, True
    for _ in range(_STEPS):
        if moved:
            jacobian = posterior.jacobian(theta)
            weighted = (jacobian * seen.weight[:, None]).T
            normal = weighted @ jacobian
            slope = weighted @ (seen.y - posterior.values(theta))
            # A parameter at its bound whose step points outside is fixed, or it would distort the step of the others.
            free = (((theta > posterior.low) | (slope >= 0)) & ((theta < posterior.high) | (slope <= 0))).nonzero()[0]
        damped = normal[free[:, None], free]
        damped.flat[:: free.size + 1] *= 1 + damping
        damped.flat[:: free.size + 1] += 1e-12
        step = np.zeros_like(theta)
        step[free] = np.linalg.solve(damped, slope[free])
        # Twice their product is what a small step gains, and more than any other does; nothing where nothing is free.
        if 2 * float(slope @ step) < enough * error:
            break
        trial = np.clip(theta + step, posterior.low, posterior.high)
        trial_error = float(posterior.squares(trial))
        moved = trial_error < error
        if moved:
            done = error - trial_error < enough * error
            theta, error, damping = trial, trial_error, max(damping / 5, 1e-9)
            if done:
                break
        else:
            damping *= 5
    return theta
