"""Proposals: a search in a forked copy of the session."""

from __future__ import annotations

import time

import numpy as np

from slipstream.program.space import Space
from slipstream.search.random import Random
from slipstream.search.types import Question
from slipstream.session.proposals import Proposal
from tests.session.synthetic import operators
from tests.session.synthetic import space as shared_space


def test_a_search_leaves_the_sketches_it_made_to_the_session() -> None:
    known = shared_space(next(iter(operators())))
    space = Space(known.key, known.func, known.target)
    assert not space.made_sketches
    question = Question(space, 2, 0, (), lambda programs: np.zeros(len(programs)))
    found, _ = Proposal(0, space.key, Random(), question, time.monotonic).result()
    assert len(found) == 2
    assert space.made_sketches == {"own": known.own, "stock": known.stock}
