"""The Bayesian model of DynaTune: predicts from an operator's tuning history the gain of its next slot."""

from __future__ import annotations

from slipstream.belief.belief import SAMPLERS, Belief, BeliefError
from slipstream.belief.forecast import Forecast

__all__ = ["SAMPLERS", "Belief", "BeliefError", "Forecast"]
