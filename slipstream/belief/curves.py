"""The families of learning curves (DynaTune, section 4.3): increasing functions of the number of trials.

Two choices make them easy to fit and to sample. Values are in units of the best performance so far, so that one set
of bounds suits an operator at 1 % of the peak and one at 60 %. And the parameter that moves the curve up and down is
replaced by `log_value`, the logarithm of the curve's value at the end of the coming slot: the quantity to forecast is a
parameter, and "a forecast below the best so far is impossible" becomes `log_value >= 0`. The prior is uniform
between the bounds, so a parameter that is a scale is represented by its logarithm.

Each function takes parameters `theta` of shape (..., p), the logarithms of n trial numbers, and that of the trial
forecast for; it gives values of shape (..., n).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import SlipstreamError

Array = NDArray[np.float64]
Function = Callable[[Array, Array, float], Array]


class CurveFamilyError(SlipstreamError):
    """A curve family was asked for by a name that does not exist."""


@dataclass(frozen=True)
class CurveFamily:
    """One parametric family. `shape` bounds the parameters after `log_value`, given the log of the last trial."""

    name: str
    parameters: tuple[str, ...]
    value: Function
    jacobian: Function
    shape: Callable[[float], Sequence[tuple[float, float]]]

    def bounds(self, ceiling: float, log_end: float) -> tuple[Array, Array]:
        """Lowest and highest parameters if performance can be at most `ceiling` times the best so far."""
        pairs = np.array([(0.0, math.log(ceiling)), *self.shape(log_end)])
        return pairs[:, 0], pairs[:, 1]


def _columns(theta: Array) -> list[Array]:
    return [theta[..., i, None] for i in range(theta.shape[-1])]


# log power: a / (1 + (x / e^b)^c), c < 0. It has half of its final value a at trial e^b.
def _log_power(theta: Array, log_x: Array, log_end: float) -> Array:
    log_value, b, log_c = _columns(theta)
    c = np.exp(log_c)
    above = 1 + np.exp(c * (b - log_end))
    return np.asarray(np.exp(log_value) * above / (1 + np.exp(c * (b - log_x))))


def _log_power_jacobian(theta: Array, log_x: Array, log_end: float) -> Array:
    _, b, log_c = _columns(theta)
    c = np.exp(log_c)
    at_end, at_x = c * (b - log_end), c * (b - log_x)
    missing_end, missing_x = 1 / (1 + np.exp(-at_end)), 1 / (1 + np.exp(-at_x))
    value = _log_power(theta, log_x, log_end)
    return np.stack(
        [value, value * c * (missing_end - missing_x), value * (at_end * missing_end - at_x * missing_x)], axis=-1
    )


def _log_power_shape(log_end: float) -> Sequence[tuple[float, float]]:
    return (-8.0, log_end + 1), (math.log(0.1), math.log(4.0))


# pow2: a x^b.
def _pow2(theta: Array, log_x: Array, log_end: float) -> Array:
    log_value, b = _columns(theta)
    return np.exp(log_value + b * (log_x - log_end))


def _pow2_jacobian(theta: Array, log_x: Array, log_end: float) -> Array:
    value = _pow2(theta, log_x, log_end)
    return np.stack([value, value * (log_x - log_end)], axis=-1)


def _pow2_shape(log_end: float) -> Sequence[tuple[float, float]]:
    return ((0.0, 1.0),)


# pow4: c - (a x + b)^-alpha.
def _pow4(theta: Array, log_x: Array, log_end: float) -> Array:
    log_value, log_a, b, log_alpha = _columns(theta)
    alpha = np.exp(log_alpha)
    at_end, at_x = np.exp(log_a + log_end) + b, np.exp(log_a + log_x) + b
    return np.exp(log_value) + at_end**-alpha - at_x**-alpha


def _pow4_jacobian(theta: Array, log_x: Array, log_end: float) -> Array:
    log_value, log_a, b, log_alpha = _columns(theta)
    alpha = np.exp(log_alpha)

    def slopes(log_at: Array | float) -> tuple[Array, Array, Array]:
        scaled = np.exp(log_a + log_at)
        base = scaled + b
        power = alpha * base**-alpha
        return -power / base * scaled, -power / base, -power * np.log(base)

    pairs = zip(slopes(log_end), slopes(log_x), strict=True)
    shape = (*theta.shape[:-1], log_x.shape[-1])
    return np.stack([np.broadcast_to(np.exp(log_value), shape), *(end - at for end, at in pairs)], axis=-1)


def _pow4_shape(log_end: float) -> Sequence[tuple[float, float]]:
    return (-7.0, 3.0), (0.5, 20.0), (math.log(0.1), math.log(4.0))


# log linear: a log x + b.
def _log_linear(theta: Array, log_x: Array, log_end: float) -> Array:
    log_value, a = _columns(theta)
    return np.exp(log_value) + a * (log_x - log_end)


def _log_linear_jacobian(theta: Array, log_x: Array, log_end: float) -> Array:
    shape = (*theta.shape[:-1], log_x.shape[-1])
    value = np.exp(theta[..., 0, None])
    return np.stack([np.broadcast_to(value, shape), np.broadcast_to(log_x - log_end, shape)], axis=-1)


def _log_linear_shape(log_end: float) -> Sequence[tuple[float, float]]:
    return ((0.0, 1.0),)


# log log linear: log(a log x + b), with a as the share q of what it can be without a logarithm of 0 at trial 1.
def _log_log_linear(theta: Array, log_x: Array, log_end: float) -> Array:
    log_value, q = _columns(theta)
    return np.exp(log_value) + np.log1p(q * (log_x - log_end) / (1 + log_end))


def _log_log_linear_jacobian(theta: Array, log_x: Array, log_end: float) -> Array:
    log_value, q = _columns(theta)
    step = (log_x - log_end) / (1 + log_end)
    inner = step / (1 + q * step)
    return np.stack([np.broadcast_to(np.exp(log_value), inner.shape), inner], axis=-1)


def _log_log_linear_shape(log_end: float) -> Sequence[tuple[float, float]]:
    return ((0.0, 1.0),)


_ALL = (
    CurveFamily("log_power", ("log_value", "b", "log_c"), _log_power, _log_power_jacobian, _log_power_shape),
    CurveFamily("pow2", ("log_value", "b"), _pow2, _pow2_jacobian, _pow2_shape),
    CurveFamily("pow4", ("log_value", "log_a", "b", "log_alpha"), _pow4, _pow4_jacobian, _pow4_shape),
    CurveFamily("log_linear", ("log_value", "a"), _log_linear, _log_linear_jacobian, _log_linear_shape),
    CurveFamily("log_log_linear", ("log_value", "q"), _log_log_linear, _log_log_linear_jacobian, _log_log_linear_shape),
)
FAMILIES = {family.name: family for family in _ALL}


def family(name: str) -> CurveFamily:
    """The curve family called `name`."""
    try:
        return FAMILIES[name]
    except KeyError:
        raise CurveFamilyError(f"there is no curve family {name!r}; choose one of {', '.join(FAMILIES)}") from None
