"""The belief's forecast of every slot, made again from what was known when the slot began."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slipstream.belief import Belief
from slipstream.session.history import OperatorHistory
from slipstream.session.state_names import PEAK_FLOPS
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
        belief = Belief(peak_flops=peak, slot_trials=settings.slot_trials, seed=settings.seed)
        operators = stored.history.operators
        found: dict[str, list[Band]] = {}
        self.pending = False
        for operator in sorted(operators.values(), key=_latency, reverse=True):
            for ordinal, (slot, first, _) in enumerate(operator.spans()):
                if not _is_chosen(ordinal):
                    continue
                if slot.number not in self._bands and limit <= 0:
                    self.pending = True
                elif slot.number not in self._bands:
                    limit -= 1
                    self._bands[slot.number] = _band(belief, operator, first, slot.number)
                band = self._bands.get(slot.number)
                if band is not None:
                    found.setdefault(operator.key, []).append(band)
        return found


def _band(belief: Belief, operator: OperatorHistory, trial: int, slot: int) -> Band | None:
    curve = operator.best_after[: trial + 1]
    best = curve[-1]
    if not math.isfinite(best):
        return None
    made = belief.forecast(operator.key, curve, operator.flops)
    if made.best <= 0:
        return None
    # Performance is inverse to time, so the best outcome is the low end.
    return Band(trial, slot, best * made.best / made.high, best * made.best / made.low, best * made.best / made.mean)


def _latency(operator: OperatorHistory) -> float:
    return operator.latency if math.isfinite(operator.latency) else 0.0


def _is_chosen(ordinal: int) -> bool:
    if ordinal < _ALL_UP_TO:
        return True
    step = 1 << (ordinal // _ALL_UP_TO).bit_length()
    return ordinal % step == 0
