"""Which operators are similar enough to share decisions.

Three ways to tell, all selectable: the paper's two, by operator sequence (conv2d + add + relu) and by sketch; and our
own, by anchor: the first operator, the signature of its sketch, so that another epilogue does not split a family, and
the forms it has. Winograd's method makes a 3x3 convolution faster than any 1x1 convolution can be: in one family with
it these would seem slow for their family, and get slots that bring nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.diffusion.signature import signature
from slipstream.diffusion.similarity import similarities
from slipstream.errors import SlipstreamError
from slipstream.graph.forms import forms_of
from slipstream.graph.operators import Operator
from slipstream.program.decisions import tile_extents
from slipstream.program.space import Space


@dataclass(frozen=True)
class Member:
    """An operator as families see it."""

    operator: Operator
    space: Space


@dataclass(frozen=True)
class Family:
    """Keys of its operators, each with its mean likeness to the others."""

    similarity: Mapping[str, float]

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self.similarity)


def find_families(members: Sequence[Member], mode: str = "anchor") -> list[Family]:
    """Every operator is in exactly one family; families of one are operators that resemble no other."""
    if mode not in _IDENTITIES:
        raise SlipstreamError(f"there is no way {mode!r} to form families; choose one of {', '.join(_IDENTITIES)}")
    groups: dict[object, list[Member]] = {}
    for member in members:
        groups.setdefault(_IDENTITIES[mode](member), []).append(member)
    return [_family(group) for group in groups.values()]


def _family(group: Sequence[Member]) -> Family:
    likeness = similarities([extents(member) for member in group])
    others = max(len(group) - 1, 1)
    return Family(
        {
            member.operator.key: float((row.sum() - 1.0) / others) if len(group) > 1 else 1.0
            for member, row in zip(group, likeness, strict=True)
        }
    )


def extents(member: Member) -> tuple[float, ...]:
    """The operator's size in every direction: the loops its direct program tiles, or else its tensors' shapes."""
    tiled = tile_extents(member.space.points(member.space.direct))
    if tiled:
        return tiled
    return tuple(float(extent) for shape, _ in member.operator.shapes for extent in shape)


def _by_anchor(member: Member) -> object:
    space = member.space
    if any(point.is_open for point in space.points(space.direct)):
        return member.operator.kinds[:1], signature(space.direct.sketch), forms_of(space.func, space.target)
    return member.operator.kinds[:1], tuple(sorted(signature(example.sketch) for example in space.stock))


def _by_sketch(member: Member) -> object:
    return tuple(sorted(example.sketch.digest for example in member.space.sketches)) or member.operator.key


_IDENTITIES: Mapping[str, Callable[[Member], object]] = {
    "anchor": _by_anchor,
    "sequence": lambda member: member.operator.kinds,
    "sketch": _by_sketch,
    "none": lambda member: member.operator.key,
}
