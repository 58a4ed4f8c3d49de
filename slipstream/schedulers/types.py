"""The `Scheduler` protocol and its input, `OperatorState`. Plain data: no TVM, no clock, no random state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.errors import SlipstreamError


class SchedulerError(SlipstreamError):
    """A scheduler was made with a value that makes no sense, or picked what it must not."""


@dataclass(frozen=True)
class OperatorState:
    """The tuning state of one operator.

    `history` has the seconds per call of the best program after 0, 1, 2, ... trials: never rising, its first entry
    that of the default program (infinite while nothing is known, or if nothing worked yet). `slot_ends` are the
    numbers of trials at which a slot of this operator ended, so `len(slot_ends)` slots were given to it.
    `seconds` is the tuning time it has used. `finished` operators must not be picked. `similar` are the others of its
    family, the nearest first. `weight` is how often the model calls it; of a model in several shapes, each shape counts
    as much as the others.
    """

    key: str
    weight: float
    flops: int
    history: Sequence[float]
    slot_ends: Sequence[int] = ()
    seconds: float = 0.0
    finished: bool = False
    similar: Sequence[str] = ()

    @property
    def best(self) -> float:
        """Seconds per call of the best program known."""
        return self.history[-1]

    @property
    def trials(self) -> int:
        return len(self.history) - 1

    @property
    def slots(self) -> int:
        return len(self.slot_ends)

    @property
    def latency(self) -> float:
        """Its share of one run of the model, in seconds."""
        return self.weight * self.best


class Scheduler(Protocol):
    """Decides which operator gets the next slot.

    A decision depends on the arguments and on the scheduler's seed alone, so an interrupted session continues
    exactly as without the interruption. State kept between calls may only be a cache.
    """

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        """The key of the operator for slot number `slot` (from 0); None if all are finished."""
        ...
