"""Functions of one byte: what a chain of element-wise operators makes of each level of an 8-bit tensor.

A GELU in 8 bits is five operators with roundings in between, and yet a function of 256 values: a table of 256 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ByteFunction:
    """`values` of a function of each level of the tensor `source`, the least first. A `costly` one is worth a table."""

    source: Any
    values: Array
    costly: bool = False

    def then(self, values: Array, costly: bool = False) -> ByteFunction:
        return ByteFunction(self.source, values, self.costly or costly)


def levels_of(dtype: str) -> Array:
    """All levels of a type of bytes, the least first."""
    limits = np.iinfo(dtype)
    return np.arange(limits.min, limits.max + 1)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_erf = np.vectorize(math.erf, otypes=[np.float64])

_CHEAP: Mapping[str, Callable[..., Array]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.negative": np.negative,
    "relax.abs": np.abs,
    "relax.round": np.round,
    "relax.nn.relu": lambda x: np.maximum(x, 0),
}
_COSTLY: Mapping[str, Callable[..., Array]] = {
    "relax.erf": _erf,
    "relax.exp": np.exp,
    "relax.tanh": np.tanh,
    "relax.sigmoid": _sigmoid,
    "relax.nn.silu": lambda x: x * _sigmoid(x),
    "relax.nn.gelu": lambda x: x * 0.5 * (1 + _erf(x * math.sqrt(0.5))),
}


def evaluate(name: str, operands: list[Array]) -> tuple[Array, bool] | None:
    """What the Relax operator `name` makes of float32 operands, and whether it is costly; None if it is not known."""
    function = _CHEAP.get(name) or _COSTLY.get(name)
    if function is None:
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*operands), np.float32), name in _COSTLY
