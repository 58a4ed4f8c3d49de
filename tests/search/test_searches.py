"""What every search promises, on real operators and without hardware."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from slipstream import plugins
from slipstream.program.decisions import check
from slipstream.program.space import Realized, Space
from slipstream.search.diffusion import _sketch_weights
from slipstream.search.types import Measured, Question, Search
from tests.program.zoo_operators import labels, space

COUNT = 4
every_search = pytest.mark.parametrize("name", plugins.names("search"))
# TVM's own evolutionary search takes seconds a question; its conformance suite runs in any case.
quick_searches = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "evolutionary" else n for n in plugins.names("search")],
)
# A convolution and a softmax: one with tiles in its default program, one without.
OPERATORS = [labels()[0], next(label for label in labels() if label.endswith("-softmax"))]


def made(name: str) -> Search:
    search: Search = plugins.make("search", name, plugins.Context(population=8, generations=1))
    return search


def propose(name: str, operator: Space, seed: int = 1, known: Sequence[Realized] = ()) -> list[Realized]:
    measured = [Measured(r.program, 1e-3 * (n + 1), slot=0) for n, r in enumerate(known)]

    def score(rows: Sequence[Any]) -> Any:
        return np.arange(len(rows), dtype=float)

    return made(name).propose(Question(operator, COUNT, seed, measured, score))


@quick_searches
@pytest.mark.parametrize("label", OPERATORS)
def test_proposals_are_new_legal_and_the_same_for_the_same_question(name: str, label: str) -> None:
    operator = space(label)
    first = propose(name, operator)
    assert 0 < len(first) <= COUNT
    for realized in first:
        program = realized.program
        assert program.operator == operator.key
        assert program.origin
        check(operator.points(program), program.decisions)
        again = operator.realize(program)
        assert again is not None
        assert again.program.identity == program.identity
    assert [r.program for r in propose(name, operator)] == [r.program for r in first]
    second = propose(name, operator, known=first)
    both = [r.program.identity for r in (*first, *second)]
    assert len(set(both)) == len(both)


def test_a_sketch_gets_the_share_that_its_programs_or_those_of_relatives_earn() -> None:
    best, unknown = 1e-3, math.inf
    leader, slow, tried_by_relatives, bad_for_relatives, ours = _sketch_weights(
        [best, 2 * best, unknown, unknown, unknown], [None, None, 1.1, 2.0, None], [1.0, 1.0, 1.4, 1.4, 1.0]
    )
    assert leader == ours == 1.0
    assert leader > tried_by_relatives > 0.5
    assert slow == bad_for_relatives < 0.05
    assert _sketch_weights([unknown, unknown], [None, None], [1.0, 1.4]) == [1.0, 1.0]
    good_for_relatives, not_tried = _sketch_weights([unknown, unknown], [1.0, None], [1.4, 1.4])
    assert good_for_relatives > 5 * not_tried
