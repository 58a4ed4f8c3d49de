"""The belief's forecast of every slot, made again from what was known when the slot began."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.belief import Belief
from slipstream.schedulers.gains import Gains
from slipstream.schedulers.types import OperatorState
from slipstream.session.history import OperatorHistory
from slipstream.session.state_names import FAMILIES, PEAK_FLOPS
from slipstream.session.stored_history import StoredHistory

_ALL_UP_TO = 12  # slots of an operator; later ones are thinned out, by half with each doubling


@dataclass(frozen=True)
class Band:
    """What was expected of a slot: seconds per call at its end, 90 % between `low` and `high`.

    `trial` is the operator's number of trials when the slot began.
    """

    trial: int
    slot: int
    low: float
    high: float
    mean: float


@dataclass
class Forecasts:
    """Bands by slot. What a past slot was expected to bring never changes, so it is worked out once."""

    pending: bool = False  # whether the last update left some for the next
    _bands: dict[int, Band | None] = field(default_factory=dict)

    def update(self, stored: StoredHistory, limit: int) -> dict[str, list[Band]]:
        """Bands of operators by their keys, with at most `limit` new ones; those that matter most to the model first.

        The rest come with the next calls.
        """
        settings = stored.settings
        peak = float(stored.saved.get(PEAK_FLOPS, 0.0))
        gains = Gains(Belief(peak_flops=peak, slot_trials=settings.slot_trials, seed=settings.seed))
        similar = _similar(stored)
        states = _States(stored, similar)
        operators = stored.history.operators
        found: dict[str, list[Band]] = {}
        self.pending = False
        for operator in sorted(operators.values(), key=_latency, reverse=True):
            for ordinal, (slot, first) in enumerate(states.starts(operator.key)):
                if not _is_chosen(ordinal):
                    continue
                if slot not in self._bands and limit <= 0:
                    self.pending = True
                elif slot not in self._bands:
                    limit -= 1
                    family = [states.at(key, slot) for key in (operator.key, *similar.get(operator.key, ()))]
                    self._bands[slot] = _band(gains, family, first, slot)
                band = self._bands.get(slot)
                if band is not None:
                    found.setdefault(operator.key, []).append(band)
        return found


def _band(gains: Gains, states: Sequence[OperatorState], trial: int, slot: int) -> Band | None:
    """The forecast for the first of `states`; the others are its relatives."""
    state = states[0]
    if not math.isfinite(state.best):
        return None
    made = gains.forecast(state, states)
    if made.best <= 0:
        return None
    # Performance is inverse to time, so the best outcome is the low end.
    return Band(
        trial,
        slot,
        state.best * made.best / made.high,
        state.best * made.best / made.low,
        state.best * made.best / made.mean,
    )


class _States:
    """What every operator's state was when a slot began."""

    def __init__(self, stored: StoredHistory, similar: Mapping[str, tuple[str, ...]]) -> None:
        self._operators, self._similar = stored.history.operators, similar
        self._starts: dict[str, list[tuple[int, int]]] = {}

    def starts(self, key: str) -> list[tuple[int, int]]:
        """The operator's slots: their numbers, and the points of its curve at which they began."""
        if key not in self._starts:
            self._starts[key] = [(slot.number, first) for slot, first, _ in self._operators[key].spans()]
        return self._starts[key]

    def at(self, key: str, slot: int) -> OperatorState:
        operator, starts = self._operators[key], self.starts(key)
        later = bisect_left(starts, (slot, 0))
        known = starts[later][1] if later < len(starts) else len(operator.best_after) - 1
        curve = operator.best_after[: known + 1]
        return OperatorState(key, operator.weight, operator.flops, curve, similar=self._similar.get(key, ()))


def _similar(stored: StoredHistory) -> dict[str, tuple[str, ...]]:
    """The other members of each operator's family."""
    similar: dict[str, tuple[str, ...]] = {}
    for family in stored.saved.get(FAMILIES, []):
        members = [key for key in family["similarity"] if key in stored.history.operators]
        similar |= {key: tuple(other for other in members if other != key) for key in members}
    return similar


def _latency(operator: OperatorHistory) -> float:
    return operator.latency if math.isfinite(operator.latency) else 0.0


def _is_chosen(ordinal: int) -> bool:
    if ordinal < _ALL_UP_TO:
        return True
    step = 1 << (ordinal // _ALL_UP_TO).bit_length()
    return ordinal % step == 0
