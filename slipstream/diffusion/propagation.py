"""Carrying decisions over to an operator with other extents.

A tile whose extent is the same is copied. Otherwise its factors are kept where they divide and moved to the nearest
divisors where they do not; or scaled with the ratio of the extents first; or drawn at random. Everything that is not
a tile (unrolling, compute locations) is copied.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from slipstream.program.decisions import Decisions, Points, Tile, Value, nearest_tile

Propagation = Literal["keep", "scale", "random"]
PROPAGATIONS: tuple[Propagation, ...] = ("keep", "scale", "random")


def propagate(
    source: Points, decisions: Decisions, target: Points, how: Propagation, rng: np.random.Generator
) -> Decisions:
    """Legal decisions for `target`, made of those of `source`. Both have the same signature."""
    return tuple(_propagate_one(a, value, b, how, rng) for a, value, b in zip(source, decisions, target, strict=True))


def _propagate_one(source: object, value: Value, target: object, how: Propagation, rng: np.random.Generator) -> Value:
    if not isinstance(source, Tile) or not isinstance(target, Tile) or not isinstance(value, tuple):
        return value
    if source.extent == target.extent and value[-1] <= target.most_innermost:
        return value
    if how == "random":
        return target.draw(rng)
    wanted = [float(factor) for factor in value]
    if how == "scale" and source.extent > 1:
        # The same share of the extent, in doublings, for every level.
        stretch = math.log(target.extent) / math.log(source.extent) if target.extent > 1 else 0.0
        wanted = [factor**stretch for factor in wanted]
    return nearest_tile(target, wanted)
