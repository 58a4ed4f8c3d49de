"""Early termination: when an operator counts as finished (DynaTune, section 5.3)."""

from __future__ import annotations

from slipstream.schedulers.types import OperatorState

# The paper's number of trials without improvement.
PATIENCE_TRIALS = 200


def is_finished(state: OperatorState, patience_trials: int = PATIENCE_TRIALS) -> bool:
    """True if none of the last `patience_trials` trials improved the best time."""
    return state.trials >= patience_trials and state.history[-1] >= state.history[-1 - patience_trials]
