"""The belief's forecast of every slot, made again from what was known when the slot began."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.belief import Belief
from slipstream.report.course import Course
from slipstream.report.reading import Rows
from slipstream.schedulers.gains import Gains
from slipstream.schedulers.types import OperatorState
from slipstream.session.settings import Settings
from slipstream.session.state_names import FAMILIES, PEAK_FLOPS

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

    def update(self, rows: Rows, course: Course, limit: int) -> dict[int, list[Band]]:
        """Bands of operators by their place, with at most `limit` new ones; those that matter most to the model first.

        The rest come with the next calls.
        """
        record = rows.record
        assert record is not None
        settings = Settings.from_json(record.options.get("settings", {}))
        peak = float(rows.kept.get(PEAK_FLOPS, 0.0))
        gains = Gains(Belief(peak_flops=peak, slot_trials=settings.slot_trials, seed=settings.seed))
        similar = _similar(rows)
        histories = _Histories(rows, course)
        order = sorted(range(len(rows.operators)), key=lambda n: -_latency(rows, course, n))
        found: dict[int, list[Band]] = {}
        self.pending = False
        for operator in order:
            for ordinal, (trial, slot) in enumerate(course.operators[operator].starts):
                if not _is_chosen(ordinal):
                    continue
                if slot not in self._bands and limit <= 0:
                    self.pending = True
                elif slot not in self._bands:
                    limit -= 1
                    states = [histories.state(n, slot) for n in (operator, *similar.get(operator, ()))]
                    self._bands[slot] = _band(gains, states, trial, slot)
                band = self._bands.get(slot)
                if band is not None:
                    found.setdefault(operator, []).append(band)
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


class _Histories:
    """What every operator's history was when a slot began."""

    def __init__(self, rows: Rows, course: Course) -> None:
        self._rows, self._course = rows, course
        keys = [operator.key for operator in rows.operators]
        self._similar = {n: tuple(keys[m] for m in others) for n, others in _similar(rows).items()}

    def state(self, operator: int, slot: int) -> OperatorState:
        course, row = self._course.operators[operator], self._rows.operators[operator]
        known = next((trial for trial, number in course.starts if number >= slot), len(course.best) - 1)
        return OperatorState(
            row.key, row.weight, row.flops, course.best[: known + 1], similar=self._similar.get(operator, ())
        )


def _similar(rows: Rows) -> Mapping[int, list[int]]:
    """The other members of each operator's family."""
    places = {operator.key: n for n, operator in enumerate(rows.operators)}
    similar: dict[int, list[int]] = {}
    for family in rows.kept.get(FAMILIES, []):
        members = [places[key] for key in family["similarity"] if key in places]
        similar |= {n: [other for other in members if other != n] for n in members}
    return similar


def _latency(rows: Rows, course: Course, operator: int) -> float:
    best = course.operators[operator].best[-1]
    return rows.operators[operator].weight * best if math.isfinite(best) else 0.0


def _is_chosen(ordinal: int) -> bool:
    if ordinal < _ALL_UP_TO:
        return True
    step = 1 << (ordinal // _ALL_UP_TO).bit_length()
    return ordinal % step == 0
