"""DynaTune's belief: what an operator's history says about the slot to come."""

from __future__ import annotations

from slipstream.belief.belief import SAMPLERS, Belief, BeliefError
from slipstream.belief.forecast import Forecast

__all__ = ["SAMPLERS", "Belief", "BeliefError", "Forecast"]
