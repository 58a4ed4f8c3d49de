"""When things happened, in the session's own time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import takewhile

from slipstream.session.history import Slot, Trial
from slipstream.session.stored_history import StoredHistory


class SessionTime:
    """The session's time of slots and trials. A slot's end is stored; the rest follows from the times of day.

    The default slots at the beginning are measured and closed together. Between two runs of a session the time of day
    goes on and the session's does not: within a slot only differences count, and with n slots in flight none begins
    before all but n - 1 of the earlier ones have ended.
    """

    def __init__(self, stored: StoredHistory) -> None:
        created = stored.record.created_at if stored.record else 0.0
        slots = stored.history.slots.values()
        defaults = list(takewhile(lambda slot: slot.default, slots))
        known = [slot.ended for slot in defaults if slot.ended is not None]
        trials = [trial for slot in defaults for trial in slot.trials]
        length = _length(trials)
        latest = max((trial.done_at for trial in trials), default=created)
        # Until the defaults are closed, the time since the session was created has to do.
        self.defaults_end = max(known) if known else max(length, latest - created, 0.0)
        self.defaults_start = max(0.0, self.defaults_end - length)
        self._before = {slot.number for slot in defaults}
        self._spans: dict[int, tuple[float, float]] = {}
        self._last: dict[int, float] = {}
        in_flight = stored.settings.in_flight
        ends: list[float] = []  # the latest `in_flight` of them
        for slot in slots:
            free = max(self.defaults_end, ends[0] if len(ends) == in_flight else 0.0)
            start, end = self._spans[slot.number] = self._span(slot, free)
            self._last[slot.number] = max((trial.done_at for trial in slot.trials), default=0.0)
            if not slot.default:
                heapq.heappush(ends, max(end, start))
                if len(ends) > in_flight:
                    heapq.heappop(ends)

    def _span(self, slot: Slot, free: float) -> tuple[float, float]:
        if slot.number in self._before:
            return self.defaults_start, self.defaults_end
        length = slot.search_seconds + _length(slot.trials)
        if slot.ended is None:
            return free, free + length
        end = max(free, slot.ended)
        return max(free, min(end, end - length)), end

    def span(self, slot: Slot) -> tuple[float, float]:
        """When the slot began and ended."""
        return self._spans[slot.number]

    def of(self, trial: Trial) -> float:
        """When the trial was over."""
        start, end = self._spans[trial.slot]
        return min(end, max(start, end - (self._last[trial.slot] - trial.done_at)))


def _length(trials: Sequence[Trial]) -> float:
    """Seconds from the first trial's beginning to the last one's end."""
    if not trials:
        return 0.0
    return max(trial.done_at for trial in trials) - min(trial.done_at - trial.spent for trial in trials)
