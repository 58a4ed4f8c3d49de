"""Random scores: what a search is worth without a cost model, and what every model says before it knows anything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.cost.state import read_state, write_state
from slipstream.cost.types import Example, Features


class Random:
    """Uniform scores from a seed. Learns nothing."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calls = 0

    def score(self, features: Sequence[Features]) -> NDArray[np.float64]:
        """Drawn anew in every call."""
        self.calls += 1
        return np.random.default_rng([self.seed, self.calls]).random(len(features))

    def learn(self, examples: Sequence[Example]) -> None:
        """There is nothing to learn."""

    def state(self) -> bytes:
        return write_state("random", calls=np.array(self.calls))

    def restore(self, state: bytes) -> None:
        self.calls = int(read_state("random", state)["calls"])
