"""What tiles take up of the machine, against a count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.program.decisions import Decisions, Tile
from slipstream.program.space import Program, Space
from slipstream.program.tile_usage import LEVELS, OPERANDS, WIDTH
from slipstream.testing.operators import closed_space, matmul_space
from tests.program.zoo_operators import labels, space

_LEVEL = OPERANDS + 3


def _tiled(operator: Space) -> tuple[Program, Decisions]:
    """A stock sketch of a matmul, and decisions: 2 x 4 results innermost, 4 products, 4 x 16 results, 8 x 32 a tile."""
    example = operator.stock[0]
    rows, columns, products = (point.extent for point in operator.points(example)[:3] if isinstance(point, Tile))
    chosen = ((rows // 8, 2, 2, 2), (columns // 32, 2, 4, 4), (products // 4, 4))
    return example, (*chosen, *example.decisions[3:])


def test_bytes_of_each_level_are_those_counted_by_hand() -> None:
    operator = matmul_space(64)
    example, decisions = _tiled(operator)
    usage = operator.usage(example.sketch)
    assert usage is not None
    row = usage.describe([decisions])[0]
    assert row.shape == (WIDTH,)
    # Innermost 2 x 4 results of one product each; then 4 products; then 4 x 16 results.
    by_hand = [(2 * 4, 2 * 1, 1 * 4), (2 * 4, 2 * 4, 4 * 4), (4 * 16, 4 * 4, 4 * 16)]
    for level, elements in enumerate(by_hand):
        shown = row[level * _LEVEL : level * _LEVEL + OPERANDS]
        assert sorted(2**shown) == pytest.approx(sorted(4 * n for n in elements))
        total = 4 * sum(elements)
        assert 2 ** row[level * _LEVEL + OPERANDS] == pytest.approx(total)
    assert row[LEVELS * _LEVEL] == min(1.0, 4 / operator.target.vector_elements)


def test_work_is_shared_out_in_as_many_tiles_as_the_outermost_loops_have() -> None:
    operator = matmul_space(64)
    example, decisions = _tiled(operator)
    usage = operator.usage(example.sketch)
    assert usage is not None
    slack = usage.describe([decisions])[0][LEVELS * _LEVEL + 3]
    columns = operator.points(example)[1]
    assert isinstance(columns, Tile)
    assert 2**slack * operator.target.threads == pytest.approx((64 // 8) * (columns.extent // 32))


@pytest.mark.parametrize("label", labels()[::6])
def test_every_sketch_of_real_operators_has_finite_rows_or_none(label: str) -> None:
    operator = space(label)
    rng = np.random.default_rng(1)
    for example in operator.sketches:
        usage = operator.usage(example.sketch)
        if usage is not None:
            drawn = [operator.draw_decisions(example, rng) for _ in range(3)]
            rows = usage.describe(drawn)
            assert rows.shape == (3, WIDTH)
            assert np.isfinite(rows).all()
    kinds = {"conv2d", "matmul", "batch_matmul"}
    if any(kind in label for kind in kinds):
        assert any(operator.usage(example.sketch) is not None for example in operator.stock)


def test_what_tiles_nothing_has_none() -> None:
    operator = closed_space()
    assert operator.usage(operator.default.sketch) is None
