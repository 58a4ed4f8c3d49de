"""When things happened, in the session's own time."""

from __future__ import annotations

from slipstream.report.reading import Rows, SlotRow, TrialRow


class SessionTime:
    """The session's time of slots and trials. A slot's end is stored; the rest follows from the times of day.

    Default slots are measured together and closed together, so they are one group. Between two runs of a session
    the time of day goes on and the session's does not: within a slot only differences count.
    """

    def __init__(self, rows: Rows) -> None:
        self._created = rows.record.created_at if rows.record else 0.0
        defaults = [slot for slot in rows.slots if slot.default]
        self.groups = ([defaults] if defaults else []) + [[slot] for slot in rows.slots if not slot.default]
        known = [slot.ended for slot in defaults if slot.ended is not None]
        numbers = {slot.number for slot in defaults}
        trials = [trial for trial in rows.trials if trial.slot in numbers]
        length = _length(trials)
        latest = max((trial.done_at for trial in trials), default=self._created)
        # Until the defaults are closed, the time since the session was created has to do.
        self.defaults_end = max(known) if known else max(length, latest - self._created, 0.0)
        self.defaults_start = max(0.0, self.defaults_end - length)
        self._ends: dict[int, float] = {}
        self._previous: dict[int, float] = {}
        previous = self.defaults_end
        for group in self.groups:
            for slot in group:
                self._previous[slot.number] = previous if not slot.default else self.defaults_start
                if not slot.default:
                    previous = max(previous, slot.ended or previous)
                    self._ends[slot.number] = previous

    def span(self, slot: SlotRow, trials: list[TrialRow]) -> tuple[float, float]:
        previous = self._previous[slot.number]
        length = slot.search_seconds + _length(trials)
        if slot.ended is None:
            return previous, previous + length
        end = self._ends[slot.number]
        return max(previous, min(end, end - length)), end

    def times(self, group: list[SlotRow], by_slot: dict[int, list[TrialRow]]) -> dict[int, float]:
        """When each trial of a group was over, by the identity of its row."""
        trials = [trial for slot in group for trial in by_slot.get(slot.number, [])]
        if not trials:
            return {}
        if group[0].default:
            start, end = self.defaults_start, self.defaults_end
        else:
            start, end = self.span(group[0], trials)
        last = max(trial.done_at for trial in trials)
        return {id(trial): min(end, max(start, end - (last - trial.done_at))) for trial in trials}


def _length(trials: list[TrialRow]) -> float:
    """Seconds from the first trial's beginning to the last one's end."""
    if not trials:
        return 0.0
    return max(trial.done_at for trial in trials) - min(trial.done_at - trial.spent for trial in trials)
