"""Decisions carried over to other extents are always legal, and as near to the original as can be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.diffusion.propagation import PROPAGATIONS, propagate
from slipstream.program.decisions import Choice, Location, Tile, check, draw

_EXTENTS = st.one_of(st.integers(1, 600), st.sampled_from([1, 2, 7, 13, 97, 127, 197, 251, 509, 1009, 4096]))


@given(
    source=_EXTENTS,
    target=_EXTENTS,
    parts=st.integers(1, 4),
    most=st.sampled_from([1, 8, 16, 64]),
    how=st.sampled_from(PROPAGATIONS),
    seed=st.integers(0, 1000),
)
def test_every_propagated_program_is_legal(source, target, parts, most, how, seed):
    rng = np.random.default_rng(seed)
    rest = (Choice((0, 16, 64), (1, 1, 1)), Location())
    before, after = (Tile(source, parts, most), *rest), (Tile(target, parts, most), *rest)
    if parts == 1 and max(source, target) > most:
        return  # a loop that is not split has one factor, which nothing can make smaller
    decisions = draw(before, rng)
    moved = propagate(before, decisions, after, how, rng)
    check(after, moved)
    assert moved[1:] == decisions[1:]
    if source == target:
        assert moved == decisions


@pytest.mark.parametrize(
    ("value", "extents", "how", "expected"),
    [
        ((4, 1, 2, 16), (128, 256), "keep", (8, 1, 2, 16)),  # inner factors stay, the outermost takes the rest
        ((4, 1, 2, 16), (128, 64), "keep", (2, 1, 2, 16)),
        ((8, 1, 7), (56, 28), "keep", (4, 1, 7)),
        ((8, 1, 7), (56, 13), "keep", (1, 1, 13)),  # a prime: whole or not at all
        ((16, 16), (256, 16), "scale", (4, 4)),
        ((2, 128), (256, 256), "scale", (2, 128)),
    ],
)
def test_where_factors_go(value, extents, how, expected):
    before, after = (Tile(e, len(value), 512) for e in extents)
    moved = propagate((before,), (value,), (after,), how, np.random.default_rng(0))
    assert moved == (expected,)
    assert math.prod(expected) == extents[1]
