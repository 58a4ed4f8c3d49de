"""What a cost model is: the contract, and the plain data that goes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import SlipstreamError

Features = NDArray[np.float32]
"""One program: a row for every statement that stores into a buffer, with `features.WIDTH` columns."""


class CostModelError(SlipstreamError):
    """A cost model was given a state or features it cannot read."""


@dataclass(frozen=True)
class Example:
    """A measured program. `operator` is the operator's key, `seconds` what a run took: infinite for a failure."""

    operator: str
    features: Features = field(repr=False, compare=False)
    seconds: float


class CostModel(Protocol):
    """Guesses which programs are fast before they are measured."""

    def score(self, features: Sequence[Features]) -> NDArray[np.float64]:
        """A figure for every program: higher is better. Comparable among programs of one operator only."""
        ...

    def learn(self, examples: Sequence[Example]) -> None:
        """Take in what has been measured since the last call; each example is given once."""
        ...

    def state(self) -> bytes:
        """Everything another model of the same kind, seed and threads needs to go on exactly as this one would."""
        ...

    def restore(self, state: bytes) -> None:
        """Become the model whose `state` this is."""
        ...
