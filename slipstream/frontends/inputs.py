"""Seeded inputs a model can be run on: floats of unit scale, integers within the range the model accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of fixed shape. `limit` is the first integer an integer input may not hold."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    limit: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{'x'.join(map(str, self.shape))}]"


def random_inputs(specs: tuple[TensorSpec, ...], rng: np.random.Generator) -> dict[str, Array]:
    """One random value for every input, by name."""
    return {spec.name: _random(spec, rng) for spec in specs}


def _random(spec: TensorSpec, rng: np.random.Generator) -> Array:
    dtype = np.dtype(spec.dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    if dtype.kind in "iu":
        # Without a known range 0 and 1 are safe: they are valid masks, segments and indices alike.
        return rng.integers(0, spec.limit or 2, spec.shape).astype(dtype)
    return rng.standard_normal(spec.shape).astype(dtype)
