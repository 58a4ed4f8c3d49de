"""What relatives show to be possible: an operator slower, FLOP for FLOP, than its family has more left to find."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from slipstream.schedulers.types import OperatorState

# An operator as fast as the fastest of its family promises a quarter of what one promises that runs at 60 % of it.
LEAST: Final = 0.25


def speeds_of(operators: Iterable[OperatorState]) -> dict[str, float]:
    """FLOP/s of each operator's best program; 0 if nothing works yet, or nothing is computed."""
    return {operator.key: operator.flops / operator.best if operator.best > 0 else 0.0 for operator in operators}


def potential(operator: OperatorState, speeds: Mapping[str, float]) -> float:
    """By how much to multiply what a slot should gain; 1 if the operator has no relatives to compare it with.

    On recorded curves the share of its latency that an operator loses in a slot grows with the logarithm of the
    distance to its fastest relative, and at one stage of tuning depends on little else: see docs/dynatune.md.
    """
    own = speeds[operator.key]
    fastest = max((speeds.get(key, 0.0) for key in operator.similar if key != operator.key), default=0.0)
    if not own or not fastest:
        return 1.0
    return LEAST + max(0.0, math.log2(fastest / own))
