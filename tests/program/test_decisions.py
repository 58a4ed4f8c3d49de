"""Decisions as data: every value drawn or changed is legal, everything else is refused with a reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.program.decisions import (
    Choice,
    Decisions,
    IllegalDecisionError,
    Location,
    Points,
    Tile,
    check,
    divisors,
    draw,
    from_json,
    nearest_tile,
    to_json,
)

EXTENTS = st.one_of(st.integers(1, 64), st.sampled_from([97, 128, 197, 224, 768, 1000, 1024, 3072, 12544]))
TILES = st.builds(Tile, EXTENTS, st.integers(2, 4), st.sampled_from([1, 16, 64]))
CHOICES = st.integers(1, 6).flatmap(
    lambda n: st.builds(
        Choice, st.just(tuple(float(i) for i in range(n))), st.tuples(*[st.floats(0.01, 1.0) for _ in range(n)])
    )
)
POINTS = st.lists(st.one_of(TILES, CHOICES, st.just(Location())), max_size=8).map(tuple)
SEEDS = st.integers(0, 2**32)


def some(points: Points, seed: int) -> Decisions:
    return draw(points, np.random.default_rng(seed))


@given(POINTS, SEEDS)
def test_what_is_drawn_is_legal_and_comes_back_from_json(points: Points, seed: int) -> None:
    decisions = some(points, seed)
    check(points, decisions)
    assert from_json(to_json(decisions)) == decisions
    assert some(points, seed) == decisions


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert list(divisors(number)) == [d for d in range(1, number + 1) if number % d == 0]


@given(POINTS, SEEDS, SEEDS)
def test_distance(points: Points, first: int, second: int) -> None:
    for point, a, b in zip(points, some(points, first), some(points, second), strict=True):
        assert point.distance(a, a) == 0
        assert point.distance(a, b) == pytest.approx(point.distance(b, a))
        assert 0 <= point.distance(a, b) <= 1 + 1e-9
        assert (point.distance(a, b) == 0) == (a == b)


def test_the_farthest_tiles_are_one_apart() -> None:
    assert Tile(64, 2, 64).distance((64, 1), (1, 64)) == 1
    assert Tile(64, 2, 64).distance((8, 8), (16, 4)) == pytest.approx(2 / 12)


@given(TILES, st.lists(st.floats(0.1, 1e5), min_size=4, max_size=4))
def test_the_nearest_tile_is_legal_and_a_legal_one_is_its_own_nearest(tile: Tile, wanted: list[float]) -> None:
    nearest = nearest_tile(tile, wanted[: tile.parts])
    tile.check(nearest)
    assert nearest_tile(tile, nearest) == nearest


TILE = Tile(24, 3, 4)
POINTS_ONE_EACH: Points = (TILE, Choice((0.0, 16.0, 64.0), (0.3, 0.3, 0.4)), Location())
LEGAL: Decisions = ((2, 3, 4), 1, -1)


@pytest.mark.parametrize(
    ("position", "value", "says"),
    [
        (0, (2, 3, 5), "do not multiply to the extent 24"),
        (0, (2, 12), "a tile of 3 factors"),
        (0, (2, 3, 4, 1), "a tile of 3 factors"),
        (0, (1, 2, 12), "over 4"),
        (0, (-2, -3, 4), "whole numbers from 1"),
        (0, (0, 3, 4), "whole numbers from 1"),
        (0, (True, 6, 4), "whole numbers from 1"),
        (0, (2.0, 3, 4), "whole numbers from 1"),
        (0, ("2", 3, 4), "whole numbers from 1"),
        (0, (math.nan, 3, 4), "whole numbers from 1"),
        (0, [2, 3, 4], "a tile of 3 factors"),
        (0, 24, "a tile of 3 factors"),
        (0, None, "a tile of 3 factors"),
        (1, 3, "an index from 0 to 2"),
        (1, -1, "an index from 0 to 2"),
        (1, True, "an index from 0 to 2"),
        (1, 1.0, "an index from 0 to 2"),
        (1, (1,), "an index from 0 to 2"),
        (2, -3, "a location is"),
        (2, 41, "a location is"),
        (2, False, "a location is"),
        (2, 0.5, "a location is"),
        (2, (0,), "a location is"),
    ],
)
def test_an_illegal_value_is_refused_and_named(position: int, value: Any, says: str) -> None:
    decisions: list[Any] = list(LEGAL)
    decisions[position] = value
    check(POINTS_ONE_EACH, LEGAL)
    with pytest.raises(IllegalDecisionError, match=f"decision {position}: .*{says}") as refused:
        check(POINTS_ONE_EACH, tuple(decisions))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("decisions", [(), LEGAL[:2], (*LEGAL, 0)])
def test_the_number_of_decisions_counts(decisions: Decisions) -> None:
    with pytest.raises(IllegalDecisionError, match="3 decisions are needed"):
        check(POINTS_ONE_EACH, decisions)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "5", "null", "{}", '""', '"12"', "[1.5]", "[true]", "[null]", '["1"]', "[[1,[2]]]", "[[1,2.0]]",
        "[NaN]", '[{"a":1}]', "[" * 100_000,
    ],
)  # fmt: skip
def test_text_that_is_no_decisions_is_refused(text: str) -> None:
    with pytest.raises(IllegalDecisionError, match="not the decisions of a program"):
        from_json(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_refused_or_checked(value: Any) -> None:
    """Whatever a store or a person hands in: it is legal decisions, or an `IllegalDecisionError`."""
    try:
        decisions = from_json(json.dumps(value))
        check(POINTS_ONE_EACH, decisions)
    except IllegalDecisionError:
        return
    assert math.prod(decisions[0]) == TILE.extent  # type: ignore[arg-type]


def test_nothing_is_open_where_there_is_no_choice() -> None:
    fixed: Points = (Tile(1, 4, 16), Choice((1.0,), (1.0,)))
    assert not any(point.is_open for point in fixed)
    assert replace(TILE, parts=1).is_open is False
