"""Filling inputs up to a shape a model was compiled for, and cutting the results back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from slipstream.errors import InputError, ShapeError
from slipstream.frontends.inputs import Array, TensorSpec

Specs = Sequence[TensorSpec]
Shape = tuple[int, ...]
Axis = tuple[int, int]
"""(position of a tensor, axis)."""


class Padding:
    """How inputs are filled up with zeros to one of several shapes.

    An output is cut back where its extent is that of a varied axis of an input in every variant. Raises `ShapeError`
    if an extent of an output varies in another way, or is not known.
    """

    def __init__(self, inputs: Sequence[Specs], outputs: Sequence[Specs]) -> None:
        unknown = next((spec for specs in outputs for spec in specs if -1 in spec.shape), None)
        if unknown is not None:
            raise ShapeError(f"inputs cannot be filled up: the size of {unknown} depends on the data; leave --pad out")
        self._shapes = [tuple(spec.shape for spec in specs) for specs in inputs]
        self._varied = _varied(inputs)
        self._extents = {axis: _extents_at(inputs, axis) for axis in self._varied}
        self._followed = {axis: self._followed_by(outputs, axis) for axis in _varied(outputs)}
        self._names = [spec.name for spec in outputs[0]]

    def _followed_by(self, outputs: Sequence[Specs], axis: Axis) -> list[Axis]:
        extents = _extents_at(outputs, axis)
        found = [varied for varied in self._varied if self._extents[varied] == extents]
        if not found:
            spec = outputs[0][axis[0]]
            raise ShapeError(
                f"inputs cannot be filled up: axis {axis[1]} of the output {spec.name!r} is "
                f"{', '.join(map(str, extents))} for the shapes given, which is no extent of an input; leave --pad out"
            )
        return found

    def bucket(self, shapes: Sequence[Shape], other_than: int | None = None) -> int | None:
        """The smallest variant that inputs of these shapes can be filled up to; None if there is none."""
        fitting = [n for n, own in enumerate(self._shapes) if n != other_than and self._fits(shapes, own)]
        return min(fitting, key=lambda n: sum(map(prod, self._shapes[n])), default=None)

    def _fits(self, shapes: Sequence[Shape], own: Sequence[Shape]) -> bool:
        return all(
            len(given) == len(large)
            and all(
                0 < extent <= most if (position, axis) in self._extents else extent == most
                for axis, (extent, most) in enumerate(zip(given, large, strict=True))
            )
            for position, (given, large) in enumerate(zip(shapes, own, strict=True))
        )

    def fill(self, arrays: Sequence[Array], bucket: int) -> list[Array]:
        return [_fill(array, shape) for array, shape in zip(arrays, self._shapes[bucket], strict=True)]

    def cut(self, results: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        """The results of a variant for inputs that had these shapes."""
        found = list(results)
        for (output, axis), followed in self._followed.items():
            wanted = {shapes[position][own] for position, own in followed}
            if len(wanted) > 1:
                raise InputError(
                    f"the inputs have extents {' and '.join(map(str, sorted(wanted)))} where the model has one, so the "
                    f"output {self._names[output]!r} cannot be cut back: give inputs that agree"
                )
            found[output] = found[output][(slice(None),) * axis + (slice(wanted.pop()),)]
        return found


def _varied(variants: Sequence[Specs]) -> list[Axis]:
    return [
        (position, axis)
        for position, spec in enumerate(variants[0])
        for axis in range(len(spec.shape))
        if len(set(_extents_at(variants, (position, axis)))) > 1
    ]


def _extents_at(variants: Sequence[Specs], axis: Axis) -> list[int]:
    return [specs[axis[0]].shape[axis[1]] for specs in variants]


def _fill(array: Array, shape: Shape) -> Array:
    if array.shape == shape:
        return array
    filled = np.zeros(shape, array.dtype)
    filled[tuple(slice(extent) for extent in array.shape)] = array
    return filled
