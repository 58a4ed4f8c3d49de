"""Seeded inputs a model can be run on: floats of unit scale, integers within the range the model accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.errors import InputError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of fixed shape. `limit` is the first integer an integer input may not hold.

    Of an output that ONNX Runtime computes, a dimension that depends on the data is -1.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    limit: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{'x'.join('?' if extent < 0 else str(extent) for extent in self.shape)}]"


def random_inputs(specs: tuple[TensorSpec, ...], rng: np.random.Generator) -> dict[str, Array]:
    """One random value for every input, by name."""
    return {spec.name: _random(spec, rng) for spec in specs}


def feed_of(specs: tuple[TensorSpec, ...], given: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """The inputs that were `given`, and random values for those that were not."""
    by_name = {spec.name: spec for spec in specs}
    for name, value in given.items():
        if name not in by_name:
            raise InputError(f"--input-data has {name!r}, the model takes {', '.join(map(str, specs))}")
        if (value.shape, str(value.dtype)) != (by_name[name].shape, by_name[name].dtype):
            got = f"{value.dtype}[{'x'.join(map(str, value.shape))}]"
            raise InputError(f"--input-data: {name!r} is {got}, the model takes {by_name[name]}")
    missing = tuple(spec for spec in specs if spec.name not in given)
    return {**random_inputs(missing, rng), **given}


def _random(spec: TensorSpec, rng: np.random.Generator) -> Array:
    dtype = np.dtype(spec.dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    if dtype.kind in "iu":
        # Without a known range 0 and 1 are safe: they are valid masks, segments and indices alike.
        return rng.integers(0, spec.limit or 2, spec.shape).astype(dtype)
    return rng.standard_normal(spec.shape).astype(dtype)
