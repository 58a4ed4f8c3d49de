"""`Samples` and `Diagnostics`: the result of a sampler and measures of its quality."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.belief.posterior import Posterior

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Diagnostics:
    """Measures of the samples' quality.

    `effective_samples`: the number of independent draws with the same variance. `acceptance`: the share of
    proposals accepted (an ensemble should have 0.2 to 0.7), `autocorrelation`: steps between independent ones,
    worst parameter; both are NaN for a sampler that has no chain.
    """

    effective_samples: float
    acceptance: float = float("nan")
    autocorrelation: float = float("nan")


@dataclass(frozen=True)
class Samples:
    """Parameters drawn from a posterior, a row each, with weights that sum up to one."""

    theta: Array
    weight: Array
    diagnostics: Diagnostics


Sampler = Callable[[Posterior, np.random.Generator], Samples]
