"""Which operators are similar enough to share decisions, and which of them is tuned for all.

Three ways to tell, all selectable: the paper's two, by operator sequence (conv2d + add + relu) and by sketch; and our
own, by anchor: the first operator and the signature of its sketch, so that another epilogue does not split a family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.diffusion.signature import signature
from slipstream.errors import SlipstreamError
from slipstream.graph.operators import Operator
from slipstream.program.decisions import Points, Tile
from slipstream.program.space import Space


@dataclass(frozen=True)
class Member:
    """An operator as families see it."""

    operator: Operator
    space: Space


@dataclass(frozen=True)
class Family:
    """Keys of its operators. `prior` is tuned first; `similarity` is each member's mean likeness to the others."""

    prior: str
    members: tuple[str, ...]
    similarity: Mapping[str, float]


def find_families(members: Sequence[Member], mode: str = "anchor") -> list[Family]:
    """Every operator is in exactly one family; families of one are operators that resemble no other."""
    if mode not in _IDENTITIES:
        raise SlipstreamError(f"there is no way {mode!r} to form families; choose one of {', '.join(_IDENTITIES)}")
    groups: dict[object, list[Member]] = {}
    for member in members:
        groups.setdefault(_IDENTITIES[mode](member), []).append(member)
    return [_family(group) for group in groups.values()]


def _family(group: Sequence[Member]) -> Family:
    vectors = {member.operator.key: extents(member) for member in group}
    likeness = {
        key: float(np.mean([cosine(vector, other) for k, other in vectors.items() if k != key] or [1.0]))
        for key, vector in vectors.items()
    }
    # The most similar one; among equals the one the model spends most on.
    prior = max(group, key=lambda m: (round(likeness[m.operator.key], 6), m.operator.weight * m.operator.flops))
    return Family(prior.operator.key, tuple(vectors), likeness)


def extents(member: Member) -> tuple[float, ...]:
    """The operator's size in every direction: the loops its default program tiles, or else its tensors' shapes."""
    tiled = tile_extents(member.space.points(member.space.default))
    if tiled:
        return tiled
    return tuple(float(extent) for shape, _ in member.operator.shapes for extent in shape)


def tile_extents(points: Points) -> tuple[float, ...]:
    return tuple(float(point.extent) for point in points if isinstance(point, Tile))


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Cosine of the angle between two shape vectors; what one has more of counts as absent in the other."""
    length = max(len(a), len(b))
    x, y = (np.pad(np.asarray(v, dtype=float), (0, length - len(v))) for v in (a, b))
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / norm if norm else 0.0


def _by_anchor(member: Member) -> object:
    space = member.space
    if any(point.is_open for point in space.points(space.default)):
        return member.operator.kinds[:1], signature(space.default.sketch)
    return member.operator.kinds[:1], tuple(sorted(signature(example.sketch) for example in space.stock))


def _by_sketch(member: Member) -> object:
    return tuple(sorted(example.sketch.digest for example in member.space.sketches)) or member.operator.key


_IDENTITIES: Mapping[str, Callable[[Member], object]] = {
    "anchor": _by_anchor,
    "sequence": lambda member: member.operator.kinds,
    "sketch": _by_sketch,
    "none": lambda member: member.operator.key,
}
MODES = tuple(_IDENTITIES)
