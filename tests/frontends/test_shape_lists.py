"""What `--shape` and `shapes=` mean."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.cli.options import parse_shapes
from slipstream.errors import ShapeError
from slipstream.frontends.shape_lists import MOST_VARIANTS, bucket_sizes, shape_sets


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (None, [{}]),
        ({"x": [1, 3]}, [{"x": [1, 3]}]),
        ({"x": ""}, [{"x": []}]),
        ({"x": "1,4x3"}, [{"x": [1, 3]}, {"x": [4, 3]}]),
        ({"x": [[1, 4], 3]}, [{"x": [1, 3]}, {"x": [4, 3]}]),
        ({"x": "1x2..8"}, [{"x": [1, 2]}, {"x": [1, 4]}, {"x": [1, 8]}]),
        # The same list is the same dimension, in the same input or in another; different ones are combined.
        ({"x": "1,4x8,9", "m": "8,9"}, [{"x": [b, s], "m": [s]} for b in (1, 4) for s in (8, 9)]),
        ([{"x": [1, 2], "m": "3"}, {"x": "4x5", "m": [6]}], [{"x": [1, 2], "m": [3]}, {"x": [4, 5], "m": [6]}]),
        ([{"x": [1]}, {"x": [1]}], [{"x": [1]}]),
        ({"past": "2x0x4"}, [{"past": [2, 0, 4]}]),
    ],
)
def test_shapes_of_each_variant(shapes: Any, expected: list[dict[str, list[int]]]) -> None:
    assert shape_sets(shapes) == expected


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((1, 128), [1, 2, 4, 8, 16, 32, 64, 128]),
        ((3, 100), [3, 4, 8, 16, 32, 64, 100]),
        ((5, 5), [5]),
        ((1, 128, 32), [1, 32, 64, 96, 128]),
        ((32, 100, 32), [32, 64, 96, 100]),
    ],
)
def test_buckets_of_a_range(arguments: tuple[int, ...], sizes: list[int]) -> None:
    assert bucket_sizes(*arguments) == sizes


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": "0,1x3"},
        {"x": "1xax3"},
        {"x": "8..1"},
        {"x": "1..8:0"},
        {"x": "1,,2"},
        {"x": 7},
        [{"x": [1]}, {"y": [1]}],
        [{"x": "1,2"}, {"x": "3"}],
        {"x": f"1..{MOST_VARIANTS + 1}:1"},
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(shapes: Any) -> None:
    with pytest.raises(ShapeError) as error:
        shape_sets(shapes)
    assert "\n" not in str(error.value)
    assert ":" in str(error.value)


def test_an_input_named_several_times_has_a_shape_for_each_variant() -> None:
    texts = ("past=1x31", "past=1x63", "mask=32", "mask=64", "ids=1x1")
    variants = [{"past": [1, length], "mask": [length + 1], "ids": [1, 1]} for length in (31, 63)]
    assert parse_shapes(texts) == variants
    with pytest.raises(ShapeError, match="2 and 3 times"):
        parse_shapes((*texts, "mask=128"))
