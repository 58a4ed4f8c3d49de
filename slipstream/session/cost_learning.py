"""Teaching the cost model what was measured, slot by slot, each once, also over the ends of a process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from slipstream.cost.types import CostModel, Example
from slipstream.session.operator_trials import OperatorTrials
from slipstream.session.proposals import Proposed
from slipstream.store import Store

_STATE = "cost"
_SAVE_SHARE = 0.05  # of the time between two savings, what one may take


class CostLearning:
    """The model is saved with the numbers of the slots it has learned: several may be open, and end in any order."""

    def __init__(self, cost: CostModel, store: Store, session: str, clock: Callable[[], float]) -> None:
        self._cost, self._store, self._session, self._clock = cost, store, session, clock
        self._learned: set[int] = set()
        self._saved_at, self._save_seconds = clock(), 0.0

    def restore(self) -> None:
        """Become what was saved last."""
        saved = self._store.state(self._session, _STATE)
        if saved is not None:
            slots, _, state = saved[1].partition(b"\n")
            self._cost.restore(state)
            self._learned = set(json.loads(slots))

    def has_learned(self, slot: int) -> bool:
        return slot in self._learned

    def learn(self, slot: int, trials: OperatorTrials, programs: Iterable[Proposed]) -> None:
        """Learn a slot's results in the order of its proposals, but for programs that could not be measured."""
        results = ((one.features, trials.measured.get(one.program.identity)) for one in programs)
        examples = [
            Example(trials.operator.key, features, measured.seconds)
            for features, measured in results
            if features is not None and measured is not None
        ]
        if examples:
            self._cost.learn(examples)
        self._learned.add(slot)

    def save(self) -> None:
        """Save the model, as often as costs little; `has_learned` tells which slots have to be learned again."""
        if self._clock() - self._saved_at < self._save_seconds / _SAVE_SHARE:
            return
        started = self._clock()
        state = json.dumps(sorted(self._learned)).encode() + b"\n" + self._cost.state()
        self._store.put_state(self._session, _STATE, max(self._learned), state)
        self._saved_at = self._clock()
        self._save_seconds = self._saved_at - started
