"""The potential of an operator: a factor on its expected gain, larger if its relatives reach more FLOP/s."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from slipstream.schedulers.types import OperatorState

# A slot that takes less than this share off an operator's latency has not improved it.
IMPROVEMENT: Final = 0.005


def speeds_of(operators: Iterable[OperatorState]) -> dict[str, float]:
    """FLOP/s of each operator's best program; 0 if nothing works yet, or nothing is computed."""
    return {operator.key: operator.flops / operator.best if operator.best > 0 else 0.0 for operator in operators}


def potential(operator: OperatorState, speeds: Mapping[str, float]) -> float:
    """The factor on a slot's expected gain; 1 if the operator has no faster relative.

    On recorded curves the relative fall of an operator's latency in a slot grows with the logarithm of the distance
    to its fastest relative. That distance may also be one that the operator cannot close, because it is too small to
    fill the machine or reads more than it computes: each slot in a row that brought nothing makes this likelier.
    """
    own = speeds[operator.key]
    fastest = max((speeds.get(key, 0.0) for key in operator.similar if key != operator.key), default=0.0)
    if not own or not fastest:
        return 1.0
    return 1.0 + max(0.0, math.log2(fastest / own)) / (1 + idle_slots(operator))


def idle_slots(operator: OperatorState) -> int:
    """How many of its slots in a row, up to the last, have not improved it."""
    ends = (0, *operator.slot_ends)
    count = 0
    for before, after in zip(reversed(ends[:-1]), reversed(ends[1:]), strict=True):
        if operator.history[after] < (1 - IMPROVEMENT) * operator.history[before]:
            break
        count += 1
    return count
