"""Programs on their way to the measurer. A search runs in a forked copy of the session: its crash costs one slot."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.cost.types import Features
from slipstream.machine.target import Target
from slipstream.processes.forked import Forked
from slipstream.program.space import Program, Realized
from slipstream.search.types import Question, Search


@dataclass(frozen=True)
class Proposed:
    """A program, its scheduled module as text, and its features where a cost model learns from them."""

    program: Program
    text: str
    features: Features | None = None


def proposed(realized: Iterable[Realized], target: Target | None = None) -> list[Proposed]:
    """Realized programs in the form in which they are measured; with features, if a `target` is given."""
    found = list(realized)
    features: list[Features | None] = [None] * len(found)
    if target is not None:
        from slipstream.cost.features import extract_possible

        features = list(extract_possible([one.module for one in found], target))
    return [Proposed(one.program, one.text, rows) for one, rows in zip(found, features, strict=True)]


class Proposal:
    """The programs of the next slot, being searched for."""

    def __init__(
        self, slot: int, operator: str, search: Search, question: Question, clock: Callable[[], float]
    ) -> None:
        self.slot, self.operator, self.size = slot, operator, question.count
        self._space = space = question.space

        def work() -> tuple[list[Proposed], float, Mapping[str, Any]]:
            started = clock()
            found = proposed(search.propose(question), space.target if search.uses_score else None)
            return found, clock() - started, space.made_sketches

        self._search = Forked(work)
        self.fileno, self.cancel = self._search.fileno, self._search.cancel

    def result(self) -> tuple[list[Proposed], float]:
        """The programs and the seconds they took to find; `ForkedCrashError` if the search crashed."""
        found, seconds, sketches = self._search.result()
        self._space.keep_sketches(sketches)  # or the next search would make them again
        return found, seconds


def first_found(proposals: Sequence[Proposal], seconds: float) -> Proposal | None:
    """One of those whose search has ended, after at most `seconds`; None if none has."""
    poll = select.poll()
    by_fd = {proposal.fileno(): proposal for proposal in proposals}
    for descriptor in by_fd:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return next((by_fd[descriptor] for descriptor, _ in poll.poll(seconds * 1000)), None)
