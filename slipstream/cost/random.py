"""Random scores: what a search reaches without a cost model, and what an untrained model returns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.cost.state import read_state, write_state
from slipstream.cost.types import Example, Features


class Random:
    """Uniform scores from a seed. Learns nothing."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def score(self, features: Sequence[Features]) -> NDArray[np.float64]:
        """A program's score depends on the seed and on the program alone, whenever it is asked for."""
        return np.array([_hash(f"{self.seed}:".encode() + rows.tobytes()) for rows in features])

    def learn(self, examples: Sequence[Example]) -> None:
        """There is nothing to learn."""

    def state(self) -> bytes:
        return write_state("random")

    def restore(self, state: bytes) -> None:
        read_state("random", state)


def _hash(data: bytes) -> float:
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big") / 2**48
