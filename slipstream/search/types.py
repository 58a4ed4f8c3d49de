"""The `Search` protocol and its input, `Question`.

A search has no state: its proposals depend on the question and its seed alone. So an interrupted session continues as
without the interruption, and the store holds everything a search uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.cost.types import Features
from slipstream.diffusion.distilled import Priors
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
    """Another operator and its measurements; `similarity` is 1 for equal shapes. A `distilled` one was tuned on another
    machine and comes from a file of priors.
    """

    operator: str
    similarity: float
    measured: Sequence[Measured]
    distilled: bool = False


@dataclass(frozen=True)
class Question:
    """Asks for `count` programs of `space` that are not among `measured`. A higher `score` predicts a faster one.

    `relatives` are of the operator's family; `priors` are distilled ones, where no earlier session has tuned relatives.
    """

    space: Space
    count: int
    seed: int
    measured: Sequence[Measured]
    score: Score
    relatives: Sequence[Relative] = ()
    priors: Priors | None = None


class Search(Protocol):
    """Proposes programs of an operator. If it never calls `score`, the cost model is not trained.

    One that begins with programs of relatives may say so by an attribute `carries_over`: first slots are short then.
    """

    uses_score: bool

    def propose(self, question: Question) -> list[Realized]:
        """At most `count` new programs, the best predicted first; none if the space is exhausted."""
        ...
