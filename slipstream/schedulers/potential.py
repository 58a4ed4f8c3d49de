"""The potential of an operator: a factor on its expected gain, larger if its relatives reach more FLOP/s."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from slipstream.schedulers.types import OperatorState

# An operator as fast as the fastest of its family gets a quarter of the factor of one that runs at 60 % of that speed.
LEAST: Final = 0.25


def speeds_of(operators: Iterable[OperatorState]) -> dict[str, float]:
    """FLOP/s of each operator's best program; 0 if nothing works yet, or nothing is computed."""
    return {operator.key: operator.flops / operator.best if operator.best > 0 else 0.0 for operator in operators}


def potential(operator: OperatorState, speeds: Mapping[str, float]) -> float:
    """The factor on a slot's expected gain; 1 if the operator has no relatives to compare it with.

    On recorded curves the relative fall of an operator's latency in a slot grows with the logarithm of the distance
    to its fastest relative, and at one stage of tuning depends on little else: see docs/dynatune.md.
    """
    own = speeds[operator.key]
    fastest = max((speeds.get(key, 0.0) for key in operator.similar if key != operator.key), default=0.0)
    if not own or not fastest:
        return 1.0
    return LEAST + max(0.0, math.log2(fastest / own))
