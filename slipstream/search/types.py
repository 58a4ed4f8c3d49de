"""What a search is asked and what it answers.

A search has no memory of its own: what it proposes follows from the question and its seed. So a session that was
interrupted goes on as it would have, and everything a search knows can be looked up in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.cost.types import Features
from slipstream.program.space import Program, Realized, Space

Score = Callable[[Sequence[Features]], NDArray[np.float64]]


@dataclass(frozen=True)
class Measured:
    """A program, the seconds it took (infinite if it failed) and the slot in which it was proposed."""

    program: Program
    seconds: float
    slot: int = -1


@dataclass(frozen=True)
class Relative:
    """Another operator of the family and what is known of it; `similarity` is 1 for equal shapes."""

    operator: str
    similarity: float
    measured: Sequence[Measured]


@dataclass(frozen=True)
class Question:
    """`count` programs are wanted that are in `space` and not among `measured`. Higher `score`s promise more."""

    space: Space
    count: int
    seed: int
    measured: Sequence[Measured]
    score: Score
    relatives: Sequence[Relative] = ()


class Search(Protocol):
    """Proposes programs of an operator. One that never asks for a `score` spares the session the cost model."""

    uses_score: bool

    def propose(self, question: Question) -> list[Realized]:
        """At most `count` new programs, the most promising first; none if there is nothing left to try."""
        ...
