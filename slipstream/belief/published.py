"""The belief as DynaTune's paper states it (section 4.3), for comparison with ours in `belief.py`.

Best FLOP/s as a share of the peak; the last segment after a jump of 20 %; a curve of one family fitted to every trial
of it by least squares; samples of its parameters by Goodman and Weare's ensemble (10 walkers from a tight Gaussian ball
around the fit, 500 steps, the last 200 samples); a uniform prior, under which a forecast below the best so far is
impossible; the expected improvement of a Gaussian with the samples' mean and deviation.

The paper does not state the noise, nor an upper bound. The noise is a further parameter that is sampled, as in Domhan
et al. (2015), whose curves these are; and no forecast is above the peak.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slipstream.belief.change_points import last_segment
from slipstream.belief.curves import CurveFamilyError
from slipstream.belief.observations import LEAST_GROWTH, performance

Array = NDArray[np.float64]

WALKERS, STEPS, KEPT = 10, 500, 200
_STRETCH = 2.0
_BALL, _WIDEST = 1e-3, 4.0
_FIT_STEPS = 40
_LEAST_NOISE = 1e-4


@dataclass(frozen=True)
class Curve:
    """A family: `value` of parameters (..., p) at log trial numbers (n), and where least squares start from, given the
    best performance and the log of the last trial."""

    value: Callable[[Array, Array], Array]
    start: Callable[[float, float], tuple[float, ...]]


def _columns(theta: Array) -> list[Array]:
    return [theta[..., i, None] for i in range(theta.shape[-1])]


def _log_power(theta: Array, log_x: Array) -> Array:
    a, b, c = _columns(theta)
    return np.asarray(a / (1 + np.exp(c * (log_x - b))))


def _pow2(theta: Array, log_x: Array) -> Array:
    a, b = _columns(theta)
    return np.asarray(a * np.exp(b * log_x))


def _pow4(theta: Array, log_x: Array) -> Array:
    a, b, c, alpha = _columns(theta)
    return np.asarray(c - (a * np.exp(log_x) + b) ** -alpha)


def _log_linear(theta: Array, log_x: Array) -> Array:
    a, b = _columns(theta)
    return np.asarray(a * log_x + b)


def _log_log_linear(theta: Array, log_x: Array) -> Array:
    a, b = _columns(theta)
    return np.asarray(np.log(a * log_x + b))


CURVES = {
    "log_power": Curve(_log_power, lambda best, log_end: (1.1 * best, log_end - 2, -1.0)),
    "pow2": Curve(_pow2, lambda best, log_end: (best * math.exp(-0.05 * log_end), 0.05)),
    "pow4": Curve(_pow4, lambda best, log_end: (1.0, 1 / best, 1.2 * best, 1.0)),
    "log_linear": Curve(_log_linear, lambda best, log_end: (0.05 * best, best * (1 - 0.05 * log_end))),
    "log_log_linear": Curve(_log_log_linear, lambda best, log_end: (0.05, math.exp(best) - 0.05 * log_end)),
}


@dataclass(frozen=True)
class Prediction:
    """Performance at the end of the slot as a share of the peak: mean and deviation of the samples, and the best."""

    best: float
    mean: float
    deviation: float

    @property
    def expected_improvement(self) -> float:
        """Over the best so far, of a Gaussian."""
        above = self.mean - self.best
        if self.deviation <= 0:
            return max(0.0, above)
        normal, z = NormalDist(), above / self.deviation
        return above * normal.cdf(z) + self.deviation * normal.pdf(z)

    @property
    def latency_reduction(self) -> float:
        """By which share the operator's latency falls: 1 - best / y, with y the best and the expected improvement."""
        after = self.best + self.expected_improvement
        return self.expected_improvement / after if after > 0 else 0.0


class PublishedBelief:
    """Forecasts one slot ahead; equal arguments and seed give equal forecasts."""

    def __init__(self, *, peak_flops: float, slot_trials: int, seed: int = 0, curve: str = "log_power") -> None:
        if curve not in CURVES:
            raise CurveFamilyError(f"there is no curve family {curve!r}; choose one of {', '.join(CURVES)}")
        self.peak_flops, self.slot_trials, self.seed = peak_flops, slot_trials, seed
        self._curve = CURVES[curve]

    def predict(self, key: str, history: Sequence[float], flops: float) -> Prediction:
        """For operator `key` with this history of best seconds after 0, 1, ... trials."""
        share = performance(history, flops, self.peak_flops)
        best = float(share[-1]) if share.size else 0.0
        if best <= 0:
            return Prediction(0.0, 0.0, 0.0)
        rng = np.random.default_rng([self.seed, zlib.crc32(key.encode()), len(share)])
        start = last_segment(share)
        log_x, y = np.log(np.arange(start, len(share)) + 1.0), share[start:]
        log_end = np.array([math.log(len(share) + self.slot_trials)])
        ceiling = max(1.0, LEAST_GROWTH * best)

        log_all, lowest_noise = np.append(log_x, log_end), _LEAST_NOISE * best

        def log_probability(theta: Array) -> Array:
            noise, values = theta[:, -1], self._curve.value(theta[:, :-1], log_all)
            off, end = values[:, :-1] - y, values[:, -1]
            likelihood = -len(y) * np.log(noise) - np.einsum("ij,ij->i", off, off) / (2 * noise * noise)
            possible = (noise > lowest_noise) & (noise < 1) & (end >= best) & (end <= ceiling) & np.isfinite(likelihood)
            return np.where(possible, likelihood, -np.inf)

        fitted = least_squares(self._curve, np.array(self._curve.start(best, log_end[0])), log_x, y)
        spread = float(np.sqrt(np.mean((self._curve.value(fitted, log_x) - y) ** 2)))
        centre = np.array([*fitted, max(spread, 2 * _LEAST_NOISE * best)])
        with np.errstate(all="ignore"):  # impossible parameters overflow
            walkers = ball(log_probability, centre, rng)
            if walkers is None:
                return Prediction(best, best, 0.0)
            chain = ensemble(log_probability, walkers, STEPS, rng)
        ends = self._curve.value(chain[-KEPT:, :-1], log_end)[:, 0]
        return Prediction(best, float(ends.mean()), float(ends.std()))


def least_squares(curve: Curve, theta: Array, log_x: Array, y: Array) -> Array:
    """Levenberg and Marquardt's method with slopes by differences."""

    def errors(at: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.nan_to_num(curve.value(at, log_x) - y, nan=1e3, posinf=1e3, neginf=-1e3)

    damping, missed = 1e-3, errors(theta)
    for _ in range(_FIT_STEPS):
        steps = 1e-6 * np.maximum(np.abs(theta), 1e-3)
        units = np.diag(steps)
        slopes = np.stack([(errors(theta + unit) - missed) / step for unit, step in zip(units, steps, strict=True)])
        normal = slopes @ slopes.T
        damped = normal + np.diag(damping * np.diag(normal) + 1e-12)
        trial = theta - np.linalg.solve(damped, slopes @ missed)
        tried = errors(trial)
        if tried @ tried < missed @ missed:
            theta, missed, damping = trial, tried, max(damping / 5, 1e-9)
        elif damping > 1e6:
            break
        else:
            damping *= 5
    return theta


def ball(log_probability: Callable[[Array], Array], centre: Array, rng: np.random.Generator) -> Array | None:
    """Possible starting points around `centre`, in the tightest ball that has them; None if there are none at all.

    A least squares fit through a step function mostly ends below the last step, where the prior is zero.
    """
    scale, radius, kept = np.maximum(np.abs(centre), 1e-2), _BALL, np.zeros((0, len(centre)))
    while len(kept) < WALKERS:
        drawn = centre + radius * scale * rng.standard_normal((64, len(centre)))
        kept = np.vstack([kept, drawn[np.isfinite(log_probability(drawn))]])
        radius *= 1.5
        if radius > _WIDEST and len(kept) < WALKERS:
            return None
    return kept[:WALKERS]


def ensemble(log_probability: Callable[[Array], Array], walkers: Array, steps: int, rng: np.random.Generator) -> Array:
    """Goodman and Weare's stretch move with two equal halves of walkers; a row for each position of each."""
    at, size, half = walkers.copy(), walkers.shape[1], len(walkers) // 2
    log_at = log_probability(at)
    chain = np.empty((steps, len(at), size))
    halves = (slice(0, half), slice(half, None))
    drawn = rng.random((3, steps, len(at)))
    stretch = ((_STRETCH - 1) * drawn[0] + 1) ** 2 / _STRETCH
    partners = (drawn[1] * half).astype(int)
    allowed = np.log(drawn[2]) - (size - 1) * np.log(stretch)
    for step in range(steps):
        for own, others in (halves, halves[::-1]):
            towards = at[others][partners[step, own]]
            proposed = towards + stretch[step, own, None] * (at[own] - towards)
            log_proposed = log_probability(proposed)
            accepted = allowed[step, own] < log_proposed - log_at[own]
            at[own][accepted] = proposed[accepted]
            log_at[own][accepted] = log_proposed[accepted]
        chain[step] = at
    return chain.reshape(-1, size)
