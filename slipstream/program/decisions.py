"""The decisions of a program: the values that were sampled along its sketch, as plain data.

A sketch says which decisions there are (`Point`s); an operator's extents say which values they may take. Nothing
in here needs TVM: an illegal value is refused before TVM sees it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from slipstream.errors import SlipstreamError

Value = int | tuple[int, ...]
Decisions = tuple[Value, ...]

# Where a block may be computed: inlined, at the root, or inside the loop of that number.
INLINED, AT_ROOT = -2, -1
_DEEPEST_LOCATION = 40


class IllegalDecisionError(SlipstreamError):
    """A decision that its point does not allow."""


@dataclass(frozen=True)
class Tile:
    """A loop of `extent` split into `parts` factors whose product it is, the last at most `most_innermost`."""

    extent: int
    parts: int
    most_innermost: int

    def check(self, value: Value) -> None:
        if not isinstance(value, tuple) or len(value) != self.parts:
            raise IllegalDecisionError(f"a tile of {self.parts} factors is needed, not {value!r}")
        if any(isinstance(factor, bool) or not isinstance(factor, int) or factor < 1 for factor in value):
            raise IllegalDecisionError(f"the factors of a tile are whole numbers from 1, not {value!r}")
        if math.prod(value) != self.extent:
            raise IllegalDecisionError(f"the factors {value!r} do not multiply to the extent {self.extent}")
        if value[-1] > self.most_innermost:
            raise IllegalDecisionError(f"the innermost factor of {value!r} is over {self.most_innermost}")

    def draw(self, rng: np.random.Generator) -> Value:
        """Innermost factors first, each a divisor of what is left, as TVM's sampler does; not quite uniform."""
        left, factors = self.extent, []
        for part in range(self.parts - 1):
            limit = self.most_innermost if part == 0 else left
            choices = [d for d in divisors(left) if d <= limit]
            factors.append(choices[int(rng.integers(len(choices)))])
            left //= factors[-1]
        return (left, *reversed(factors))

    def distance(self, a: Value, b: Value) -> float:
        """Mean number of doublings between the factors, in units of the extent's."""
        assert isinstance(a, tuple)
        assert isinstance(b, tuple)
        doublings = sum(abs(math.log2(x / y)) for x, y in zip(a, b, strict=True))
        return doublings / (2 * math.log2(self.extent)) if self.extent > 1 else 0.0

    @property
    def is_open(self) -> bool:
        """Whether there is more than one legal value."""
        return self.extent > 1 and self.parts > 1


@dataclass(frozen=True)
class Choice:
    """One of `candidates`, by its index; `probabilities` are how often TVM's sampler would take each."""

    candidates: tuple[float, ...]
    probabilities: tuple[float, ...]

    def check(self, value: Value) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(self.candidates):
            raise IllegalDecisionError(f"an index from 0 to {len(self.candidates) - 1} is needed, not {value!r}")

    def values(self) -> Iterator[Value]:
        yield from range(len(self.candidates))

    def draw(self, rng: np.random.Generator) -> Value:
        weights = np.asarray(self.probabilities, dtype=float)
        return int(rng.choice(len(self.candidates), p=weights / weights.sum()))

    def distance(self, a: Value, b: Value) -> float:
        return float(a != b)

    @property
    def is_open(self) -> bool:
        return len(self.candidates) > 1


@dataclass(frozen=True)
class Scale(Choice):
    """A choice among sizes, rising: those next to each other are similar."""

    def distance(self, a: Value, b: Value) -> float:
        assert isinstance(a, int)
        assert isinstance(b, int)
        return abs(a - b) / max(1, len(self.candidates) - 1)


@dataclass(frozen=True)
class Location:
    """Where to compute a block. How many loops there are depends on the other decisions: TVM takes the nearest."""

    def check(self, value: Value) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not INLINED <= value <= _DEEPEST_LOCATION:
            raise IllegalDecisionError(f"a location is {INLINED} (inlined), {AT_ROOT} (root) or a loop, not {value!r}")

    def values(self) -> Iterator[Value]:
        yield from range(INLINED, _DEEPEST_LOCATION + 1)

    def draw(self, rng: np.random.Generator) -> Value:
        return int(rng.integers(INLINED, 16))

    def distance(self, a: Value, b: Value) -> float:
        assert isinstance(a, int)
        assert isinstance(b, int)
        return min(1.0, abs(a - b) / 8)

    @property
    def is_open(self) -> bool:
        return True


Point = Tile | Choice | Location
Points = tuple[Point, ...]


def tile_extents(points: Points) -> tuple[float, ...]:
    return tuple(float(point.extent) for point in points if isinstance(point, Tile))


def check(points: Points, decisions: Decisions) -> None:
    """Raise `IllegalDecisionError` unless `decisions` has a legal value for every point."""
    if len(decisions) != len(points):
        raise IllegalDecisionError(f"{len(points)} decisions are needed, not {len(decisions)}")
    for number, (point, value) in enumerate(zip(points, decisions, strict=True)):
        try:
            point.check(value)
        except IllegalDecisionError as error:
            raise IllegalDecisionError(f"decision {number}: {error}") from None


def draw(points: Points, rng: np.random.Generator) -> Decisions:
    """Decisions at random."""
    return tuple(point.draw(rng) for point in points)


def to_json(decisions: Decisions) -> str:
    """Compact text; `from_json` reads it back."""
    return json.dumps(decisions, separators=(",", ":"))


def from_json(text: str) -> Decisions:
    try:
        values = json.loads(text)
        if not isinstance(values, list):
            raise ValueError("a list is needed")
        return tuple(tuple(map(_whole, value)) if isinstance(value, list) else _whole(value) for value in values)
    except (TypeError, ValueError, RecursionError) as error:
        raise IllegalDecisionError(f"not the decisions of a program: {error}") from None


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of `number`, rising."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return (*small, *(number // d for d in reversed(small) if d * d != number))


def nearest_tile(point: Tile, wanted: Sequence[float]) -> tuple[int, ...]:
    """The legal factors nearest to `wanted` from the innermost outwards; the outermost takes what is left."""
    left, factors = point.extent, []
    for part, value in enumerate(reversed(wanted[1:])):
        limit = point.most_innermost if part == 0 else left
        allowed = [d for d in divisors(left) if d <= limit]
        factors.append(min(allowed, key=lambda d, value=value: abs(math.log(d / max(value, 1e-9)))))  # type: ignore[misc]
        left //= factors[-1]
    return (left, *reversed(factors))
