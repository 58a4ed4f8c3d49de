"""`Belief`: fits a learning curve to an operator's best times and forecasts its next slot."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.belief import ensemble, importance
from slipstream.belief.curves import family
from slipstream.belief.forecast import NOTHING, OUTCOMES, Forecast, forecast, outcomes
from slipstream.belief.observations import observe, performance
from slipstream.belief.posterior import Posterior
from slipstream.belief.samples import Sampler, Samples
from slipstream.errors import SlipstreamError

Array = NDArray[np.float64]

SAMPLERS: dict[str, Sampler] = {"importance": importance.sample, "emcee": ensemble.sample}


class BeliefError(SlipstreamError):
    """The belief was set up with something that does not exist."""


class Belief:
    """Forecasts one slot ahead. Equal arguments and seed give equal forecasts; nothing depends on earlier calls."""

    def __init__(
        self,
        *,
        peak_flops: float,
        slot_trials: int,
        seed: int = 0,
        curve: str = "log_power",
        sampler: str = "importance",
    ) -> None:
        if sampler not in SAMPLERS:
            raise BeliefError(f"there is no sampler {sampler!r}; choose one of {', '.join(SAMPLERS)}")
        if slot_trials < 1:
            raise BeliefError(f"a slot has at least one trial, not {slot_trials}")
        if not 0 <= peak_flops < math.inf:
            raise BeliefError(f"peak_flops is the target's peak in FLOP/s, or 0 if it is not known, not {peak_flops}")
        self.peak_flops, self.slot_trials, self.seed = peak_flops, slot_trials, seed
        self.family = family(curve)
        self.sampler = SAMPLERS[sampler]

    def forecast(self, key: str, history: Sequence[float], flops: float) -> Forecast:
        """The forecast for operator `key` with this history of best seconds after 0, 1, ... trials.

        A history without a valid measurement gives a forecast of no improvement.
        """
        share = performance(history, flops, self.peak_flops)
        if not share.size or share[-1] <= 0:
            return NOTHING
        posterior, samples, rng = self._sampled(key, share)
        return forecast(posterior, samples, float(share[-1]), rng)

    def outlook(self, key: str, history: Sequence[float], flops: float, trials: int) -> Array:
        """Draws of the operator's seconds after that many more trials, as shares of its best so far, in no order."""
        share = performance(history, flops, self.peak_flops)
        if trials < 1 or not share.size or share[-1] <= 0:
            return np.ones(OUTCOMES)
        posterior, samples, rng = self._sampled(key, share)
        then = len(share) + trials
        noise = (1 + then / self.slot_trials) ** -0.5
        drawn = 1 / outcomes(posterior, samples, math.log(then), noise, rng)
        return np.asarray(rng.permutation(drawn))

    def _sampled(self, key: str, share: Array) -> tuple[Posterior, Samples, np.random.Generator]:
        rng = np.random.default_rng([self.seed, zlib.crc32(key.encode()), len(share)])
        posterior = Posterior(self.family, observe(share, self.slot_trials))
        return posterior, self.sampler(posterior, rng), rng
