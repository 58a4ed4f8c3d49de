"""`Samples`: the result of a sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.belief.posterior import Posterior

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """Parameters drawn from a posterior, a row each, with weights that sum up to one.

    `acceptance` is the share of proposals that a chain accepted (an ensemble should have 0.2 to 0.7).
    """

    theta: Array
    weight: Array
    acceptance: float = float("nan")


Sampler = Callable[[Posterior, np.random.Generator], Samples]
