"""Which operators a policy may pick from, and the choices that several policies share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from slipstream.schedulers.types import OperatorState


def unfinished(operators: Sequence[OperatorState]) -> list[OperatorState]:
    """The operators a slot may go to, in their order."""
    return [operator for operator in operators if not operator.finished]


def without_measurement(operators: Sequence[OperatorState]) -> list[OperatorState]:
    """Those without a valid measurement. Adaptive policies pick them first, as no gain can be predicted for them."""
    return [operator for operator in operators if not math.isfinite(operator.best)]


def fewest_slots(operators: Sequence[OperatorState]) -> OperatorState:
    """The operator with the fewest slots, the first of them in order: round-robin without stored state."""
    return min(operators, key=lambda operator: operator.slots)


def highest(operators: Sequence[OperatorState], score: Callable[[OperatorState], float]) -> OperatorState:
    """Arg max; among equals the one with the fewest slots, so that a tie cannot starve an operator."""
    return max(operators, key=lambda operator: (score(operator), -operator.slots))


def pick_adaptively(
    operators: Sequence[OperatorState], choose: Callable[[Sequence[OperatorState]], OperatorState]
) -> str | None:
    """Operators without a valid program first, then what `choose` picks of those that are unfinished."""
    candidates = unfinished(operators)
    if not candidates:
        return None
    unmeasured = without_measurement(candidates)
    return (fewest_slots(unmeasured) if unmeasured else choose(candidates)).key


def next_unfinished(operators: Sequence[OperatorState], start: int) -> OperatorState | None:
    """The operator a slot was planned for, or the next unfinished one in circular order."""
    for step in range(len(operators)):
        operator = operators[(start + step) % len(operators)]
        if not operator.finished:
            return operator
    return None
