"""Dynamic allocation with random selection, without a belief: DynaTune's section 5.3."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.schedulers.eligible import unfinished, without_measurement
from slipstream.schedulers.types import OperatorState


class DynamicRandom:
    """Draws each slot's owner among the operators that are not finished, those without a measurement first."""

    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        left = unfinished(operators)
        candidates = without_measurement(left) or left
        if not candidates:
            return None
        rng = np.random.default_rng([self.seed, slot])
        return candidates[int(rng.integers(len(candidates)))].key
