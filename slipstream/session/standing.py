"""Where the operators of a session stand: what the scheduler is told of each, and what more tuning would bring."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from slipstream.belief import Belief
from slipstream.schedulers.left_to_gain import LeftToGainEstimate
from slipstream.schedulers.types import OperatorState
from slipstream.session.events import Left
from slipstream.session.families import Families
from slipstream.session.history import History, OperatorHistory
from slipstream.session.settings import Settings


class Standing:
    """`importance` is what an operator's time counts for where it is not what it takes: of several shapes."""

    def __init__(
        self,
        history: History,
        families: Callable[[], Families],
        settings: Settings,
        importance: Mapping[str, float],
        peak_flops: float,
    ) -> None:
        self._history, self._families, self._settings, self._importance = history, families, settings, importance
        belief = Belief(peak_flops=peak_flops, slot_trials=settings.slot_trials, seed=settings.seed)
        self._left = LeftToGainEstimate(belief, settings.patience_trials, settings.most_trials)
        self._states: dict[str, tuple[int, OperatorState]] = {}

    def states(self, busy: Container[str]) -> list[OperatorState]:
        """What the scheduler picks from. Busy ones cannot be picked, but what they have reached counts for others."""
        states = [self._state(operator) for operator in self._history.operators.values()]
        return [replace(state, finished=True) if state.key in busy else state for state in states]

    def left(self, elapsed: float) -> Left | None:
        """What more tuning would bring, from when every operator has a time and a slot was given."""
        history = self._history
        tried = history.trials - history.default_trials
        if not tried:
            return None
        # Without an operator that never works: it has no part in the latency.
        working = [one for one in history.operators.values() if math.isfinite(one.best) or not one.has_default]
        found = self._left.estimate([self._state(one) for one in working])
        began = max((slot.ended or 0.0 for slot in history.slots.values() if slot.default), default=0.0)
        pace = max(0.0, elapsed - began) / tried
        return Left(found.expected, found.at_most, pace * found.trials) if found else None

    def _state(self, operator: OperatorHistory) -> OperatorState:
        """An operator as schedulers see it, made anew only when it has changed."""
        key = operator.key
        version, state = self._states.get(key, (-1, None))
        if state is None or version != operator.version:
            finished = operator.is_finished(self._settings.patience_trials, self._settings.most_trials)
            state = OperatorState(
                key,
                operator.weight * self._importance.get(key, 1.0),
                operator.flops,
                tuple(operator.best_after),
                operator.slot_ends,
                operator.seconds,
                finished or (operator.lacks_default and not math.isfinite(operator.best)),
                self._families().similar(key),
            )
            self._states[key] = operator.version, state
        return state
