"""The transforms of Winograd's convolution F(m x m, 3 x 3), as short sums that share what they can.

An output tile of m x m comes from an input tile of (m + 2) x (m + 2) with one multiplication for each element of the
latter: 4 instead of 9 per output for m = 2, 2.25 for m = 4. In one dimension, with the points 0, 1, -1 (m = 2), and
2, -2 as well (m = 4), and infinity:

    y = output(input(d) * weight(g)),  y[i] = d[i] g[0] + d[i+1] g[1] + d[i+2] g[2]

In two dimensions each transform is applied to the columns and then to the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = list[Any]
Keep = Callable[[Any], Any]  # gives an expression a name, so that it is computed once
Transform = Callable[[Row, Keep], Row]


def _input_2(d: Row, keep: Keep) -> Row:
    return [keep(d[0] - d[2]), keep(d[1] + d[2]), keep(d[2] - d[1]), keep(d[1] - d[3])]


def _weight_2(g: Row, keep: Keep) -> Row:
    even, odd = keep((g[0] + g[2]) * 0.5), keep(g[1] * 0.5)
    return [g[0], keep(even + odd), keep(even - odd), g[2]]


def _output_2(p: Row, keep: Keep) -> Row:
    return [keep(p[0] + p[1] + p[2]), keep(p[1] - p[2] - p[3])]


def _input_4(d: Row, keep: Keep) -> Row:
    even_1, odd_1 = keep(d[4] - d[2] * 4.0), keep(d[3] - d[1] * 4.0)
    even_2, odd_2 = keep(d[4] - d[2]), keep((d[3] - d[1]) * 2.0)
    return [
        keep(d[0] * 4.0 + (d[4] - d[2] * 5.0)),
        keep(even_1 + odd_1),
        keep(even_1 - odd_1),
        keep(even_2 + odd_2),
        keep(even_2 - odd_2),
        keep(d[1] * 4.0 + (d[5] - d[3] * 5.0)),
    ]


def _weight_4(g: Row, keep: Keep) -> Row:
    even_1, odd_1 = keep((g[0] + g[2]) * (-1 / 6)), keep(g[1] * (-1 / 6))
    even_2, odd_2 = keep(g[0] * (1 / 24) + g[2] * (1 / 6)), keep(g[1] * (1 / 12))
    return [
        keep(g[0] * 0.25),
        keep(even_1 + odd_1),
        keep(even_1 - odd_1),
        keep(even_2 + odd_2),
        keep(even_2 - odd_2),
        g[2],
    ]


def _output_4(p: Row, keep: Keep) -> Row:
    even_1, odd_1 = keep(p[1] + p[2]), keep(p[1] - p[2])
    even_2, odd_2 = keep(p[3] + p[4]), keep(p[3] - p[4])
    return [
        keep(p[0] + even_1 + even_2),
        keep(odd_1 + odd_2 * 2.0),
        keep(even_1 + even_2 * 4.0),
        keep(odd_1 + odd_2 * 8.0 + p[5]),
    ]


@dataclass(frozen=True)
class Transforms:
    """The three one-dimensional transforms for one size of tile."""

    input: Transform
    weight: Transform
    output: Transform


TRANSFORMS = {2: Transforms(_input_2, _weight_2, _output_2), 4: Transforms(_input_4, _weight_4, _output_4)}


def transform_square(transform: Transform, rows: list[Row], keep: Keep) -> list[Row]:
    """Apply a one-dimensional transform to the columns of a square and then to the rows of the result."""
    columns = [transform(list(column), keep) for column in zip(*rows, strict=True)]
    return [transform(list(row), keep) for row in zip(*columns, strict=True)]
