"""An operator's arguments and expected results, made once and shared by every worker that runs one of its programs.

They lie in one anonymous file in memory. Each process that runs a program maps it privately: all have the same pages
until one writes to a page, and what a program overwrites is its own copy.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

_ALIGNMENT = 4096

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Slot:
    """One argument: an input holds its value, an output (`written`) what the reference computed; or a `weight`."""

    shape: tuple[int, ...]
    dtype: str
    written: bool
    offset: int
    weight: bool = False

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * numpy_type(self.dtype).itemsize


@dataclass(frozen=True)
class Layout:
    """Where each argument lies in the file."""

    slots: tuple[Slot, ...]

    @property
    def nbytes(self) -> int:
        return max((slot.offset + slot.nbytes for slot in self.slots), default=0) or 1

    @property
    def weights(self) -> list[int]:
        """Positions of the weights."""
        return [index for index, slot in enumerate(self.slots) if slot.weight]

    @property
    def outputs(self) -> list[int]:
        """Positions of the results."""
        return [index for index, slot in enumerate(self.slots) if slot.written]

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(slot) for slot in self.slots]

    @staticmethod
    def from_json(slots: list[dict[str, Any]]) -> Layout:
        return Layout(tuple(Slot(**{**slot, "shape": tuple(slot["shape"])}) for slot in slots))


def plan(arguments: list[tuple[tuple[int, ...], str, bool]], weights: Sequence[int] = ()) -> Layout:
    """Place (shape, dtype, written) one after another, each on its own page. `weights` are positions."""
    slots: list[Slot] = []
    offset = 0
    for index, (shape, dtype, written) in enumerate(arguments):
        slots.append(Slot(shape, dtype, written, offset, index in weights))
        offset += -(-slots[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
    return Layout(tuple(slots))


def map_arena(fd: int, layout: Layout, *, shared: bool = False) -> list[Array]:
    """The arguments as arrays. Written to, they change for everybody only if `shared`."""
    if shared:
        os.ftruncate(fd, layout.nbytes)
    memory = mmap.mmap(fd, layout.nbytes, mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
    return [
        np.frombuffer(memory, numpy_type(slot.dtype), prod(slot.shape), slot.offset).reshape(slot.shape)
        for slot in layout.slots
    ]


def random_values(slot: Slot, rng: np.random.Generator, *, positive: bool = False) -> Array:
    """Values for an input. `positive` is for operators that take roots or logarithms.

    Wide integers are mostly indices: 0 and 1 are within bounds of nearly everything.
    """
    dtype = numpy_type(slot.dtype)
    if dtype.kind in "biu":
        highest = 2 if dtype.kind == "b" or dtype.itemsize > 2 else 16
        return rng.integers(0, highest, slot.shape).astype(dtype)
    if positive:
        return rng.uniform(0.5, 1.5, slot.shape).astype(dtype)
    return rng.standard_normal(slot.shape, dtype=np.float32).astype(dtype)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array that starts on a page, as those in an arena do: alignment changes the speed."""
    memory = mmap.mmap(-1, max(prod(shape) * dtype.itemsize, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype, prod(shape)).reshape(shape)


def same_bytes(first: Array, second: Array) -> bool:
    """Whether two arrays of one type and shape are equal bit for bit, without copying them."""
    word = np.uint64 if first.nbytes % 8 == 0 else np.uint8
    one, other = (np.ascontiguousarray(array).reshape(-1).view(word) for array in (first, second))
    return np.array_equal(one, other)


def disagreement(actual: Array, expected: Array, tolerance: float) -> str:
    """What is wrong with `actual`, or nothing. The error allowed grows with the size of the expected values."""
    if actual.dtype.kind in "biu":
        wrong, scale = actual != expected, float(np.abs(expected.astype(np.float64)).max(initial=0.0))
    else:
        tolerance = max(tolerance, 16 * float(np.finfo(actual.dtype).eps)) if actual.dtype.kind == "f" else 0.1
        a, e = (x.astype(np.float32, copy=False) if x.dtype.itemsize < 8 else x for x in (actual, expected))
        scale = float(np.abs(e).max(initial=0.0, where=np.isfinite(e))) or 1.0
        # Not `> limit`: what is not a number must count as wrong.
        wrong = ~(np.abs(a - e) <= tolerance * scale)
        if wrong.any():
            wrong &= ~((a == e) | (np.isnan(a) & np.isnan(e)))
    count = int(np.count_nonzero(wrong))
    if not count:
        return ""
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{count} of {actual.size} values differ from the reference, first at {list(where)}: "
        f"{actual[where]!s} instead of {expected[where]!s} (largest value {scale:.3g})"
    )


def numpy_type(name: str) -> np.dtype[Any]:
    """NumPy's type of a TVM type's name; bfloat16 and the 8-bit floats come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        scalar: type[Any] = getattr(ml_dtypes, name)
        return np.dtype(scalar)
