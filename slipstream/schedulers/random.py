"""Slots drawn at random in advance: a static policy of DynaTune's section 5.2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.schedulers.eligible import next_unfinished
from slipstream.schedulers.types import OperatorState


class Random:
    """Each slot's operator is drawn among all; if it is finished, the next one in order gets the slot."""

    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        if not operators:
            return None
        rng = np.random.default_rng([self.seed, slot])
        owner = next_unfinished(operators, int(rng.integers(len(operators))))
        return owner.key if owner else None
