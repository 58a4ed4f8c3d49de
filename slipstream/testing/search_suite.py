"""What every search must do, as tests that anybody's search can run.

    class TestMine(SearchSuite):
        def make(self, context):
            return MySearch(context)

pytest collects the subclass and runs all of it on a small matrix product; nothing here needs pytest or a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slipstream.cost.features import WIDTH
from slipstream.cost.types import Features
from slipstream.plugins import Context
from slipstream.program.space import Realized, Space
from slipstream.search.types import Measured, Question, Relative, Search
from slipstream.testing.operators import closed_space, matmul_space

COUNT = 4


class SearchSuite:
    """Subclass it and say how the search is made. `seeded`: another seed leads to other programs."""

    seeded = True

    def make(self, context: Context) -> Search:
        """A new search."""
        raise NotImplementedError

    def test_proposals_are_legal_programs_of_the_operator(self) -> None:
        space = matmul_space()
        found = self._propose(_question(space))
        assert 0 < len(found) <= COUNT, f"{len(found)} programs where {COUNT} were asked for"
        for realized in found:
            program = realized.program
            assert program.operator == space.key
            assert program.origin, "a program says who proposed it"
            space.check(program)
            again = space.realize(program)
            assert again is not None
            assert again.program.identity == program.identity

    def test_nothing_is_proposed_twice(self) -> None:
        first = self._propose(_question(matmul_space()))
        # The last one failed: it is known nevertheless.
        seconds = [1e-3 * (n + 1) for n in range(len(first) - 1)] + [math.inf]
        measured = [Measured(r.program, s, slot=0) for r, s in zip(first, seconds, strict=True)]
        second = self._propose(_question(matmul_space(), measured=measured, seed=2))
        identities = [realized.program.identity for realized in (*first, *second)]
        assert len(set(identities)) == len(identities)

    def test_proposals_follow_from_the_question_alone(self) -> None:
        """A session that was interrupted goes on as it would have: a search has no state of its own."""
        questions = [_question(matmul_space(), seed=seed) for seed in (1, 2)]
        search = self.make(Context())
        answers = [_identities(search.propose(question)) for question in questions]
        assert _identities(search.propose(questions[0])) == answers[0], "another answer when asked again"
        assert _identities(self._propose(questions[1])) == answers[1], "another answer of a new search"
        if self.seeded:
            assert answers[0] != answers[1], "another seed changes nothing"

    def test_no_more_is_proposed_than_asked_for(self) -> None:
        for count in (0, 1):
            assert len(self._propose(_question(matmul_space(), count=count))) <= count

    def test_where_nothing_can_be_decided_nothing_is_proposed(self) -> None:
        assert self._propose(_question(closed_space())) == []

    def test_relatives_are_no_trouble(self) -> None:
        """One with measurements, one without, one that never worked."""
        measured = [Measured(matmul_space(32).default, 1e-4, slot=0)]
        failed = [replace(one, seconds=math.inf) for one in measured]
        relatives = [Relative(f"relative{n}", 0.5, known) for n, known in enumerate((measured, (), failed))]
        for realized in self._propose(_question(matmul_space(), relatives=relatives)):
            matmul_space().check(realized.program)

    def test_the_score_is_asked_only_if_it_says_so(self) -> None:
        asked = 0

        def score(features: Sequence[Features]) -> NDArray[np.float64]:
            nonlocal asked
            asked += 1
            assert all(rows.ndim == 2 and rows.shape[1] == WIDTH for rows in features)
            return np.arange(len(features), dtype=float)

        search = self.make(Context())
        search.propose(replace(_question(matmul_space()), score=score))
        assert bool(asked) == search.uses_score, f"uses_score is {search.uses_score}, the score was asked {asked} times"

    def _propose(self, question: Question) -> list[Realized]:
        return self.make(Context()).propose(question)


def _question(
    space: Space,
    *,
    count: int = COUNT,
    seed: int = 1,
    measured: Sequence[Measured] = (),
    relatives: Sequence[Relative] = (),
) -> Question:
    return Question(space, count, seed, measured, lambda rows: np.arange(len(rows), dtype=float), relatives)


def _identities(found: Sequence[Realized]) -> list[object]:
    return [realized.program.identity for realized in found]
