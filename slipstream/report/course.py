"""How a session went: every operator's best after each trial, the model's latency over time, what slots gained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slipstream.report.reading import Rows, SlotRow, TrialRow


@dataclass
class OperatorCourse:
    """Entry n of `times` and `seconds` belongs to trial n of the operator; `seconds` is None where it failed.

    `best` has one entry more: the best after 0, 1, 2, ... trials beyond the default program's, as a scheduler sees
    it. `starts` are the numbers of such trials at which its slots began, with the slots' numbers.
    """

    start: float = math.inf
    best: list[float] = field(default_factory=lambda: [math.inf])
    times: list[float] = field(default_factory=list)
    seconds: list[float | None] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    fastest: TrialRow | None = None
    failures: int = 0
    spent: float = 0.0


@dataclass(frozen=True)
class SlotSpan:
    """A slot in the session's time; `gain` seconds were taken off the model by it."""

    number: int
    operator: int
    start: float
    end: float
    trials: int
    gain: float
    open: bool


@dataclass
class Course:
    """The session's course. `curve` has (time, latency, operator that improved) from when all operators are known."""

    operators: list[OperatorCourse]
    curve: list[tuple[float, float, int]]
    spans: list[SlotSpan]
    start_latency: float
    latency: float
    defaults_end: float
    search_seconds: float
    run_seconds: float
    build_seconds: float


def follow(rows: Rows) -> Course:
    """Play a session's rows back."""
    spans = _Spans(rows)
    courses = [OperatorCourse() for _ in rows.operators]
    by_slot: dict[int, list[TrialRow]] = {}
    for trial in rows.trials:
        by_slot.setdefault(trial.slot, []).append(trial)
    timed = {slot.operator for slot in rows.slots if slot.default and slot.ended is not None}
    complete = bool(rows.operators) and len(timed) == len(rows.operators)
    curve: list[tuple[float, float, int]] = []
    found: list[SlotSpan] = []
    total = _Total(rows)
    for group in spans.groups:
        times = spans.times(group, by_slot)
        for slot in group:
            course, trials = courses[slot.operator], by_slot.get(slot.number, [])
            before = course.best[-1]
            if not slot.default:
                course.starts.append((len(course.best) - 1, slot.number))
                course.spent += slot.search_seconds
            for trial in trials:
                at = times[id(trial)]
                improved = _add(course, trial, at, default=slot.default and trial.position == 0)
                if improved:
                    total.update(slot.operator, course.best[-1])
                    if not slot.default:
                        curve.append((at, total.latency, slot.operator))
            if not slot.default:
                gain = rows.operators[slot.operator].weight * (before - course.best[-1])
                start, end = spans.span(slot, trials)
                gained = gain if math.isfinite(gain) else 0.0
                found.append(SlotSpan(slot.number, slot.operator, start, end, len(trials), gained, slot.ended is None))
    known = [(o.weight, c.start) for o, c in zip(rows.operators, courses, strict=True) if math.isfinite(c.start)]
    start = sum(weight * seconds for weight, seconds in known) if complete and known else math.inf
    # The curve begins with the default programs, also where none of them has been improved upon.
    curve = [(spans.defaults_end, start, -1), *curve] if math.isfinite(start) else []
    measured = sum(span.end - span.start for span in found) + spans.defaults_end - spans.defaults_start
    searched = sum(slot.search_seconds for slot in rows.slots)
    ran = sum(trial.run_seconds for trial in rows.trials)
    return Course(
        operators=courses,
        curve=_in_order(curve),
        spans=found,
        start_latency=start,
        latency=total.latency if complete else math.inf,
        defaults_end=spans.defaults_end,
        search_seconds=searched,
        run_seconds=ran,
        build_seconds=max(0.0, measured - searched - ran),
    )


def _add(course: OperatorCourse, trial: TrialRow, at: float, *, default: bool) -> bool:
    """As `session.track.Track.add` counts; True if the operator's best became better."""
    seconds = trial.seconds if trial.seconds is not None else math.inf
    before = course.best[-1]
    course.times.append(at)
    course.seconds.append(trial.seconds)
    course.failures += trial.failure is not None
    course.spent += trial.spent
    if default:
        course.start = seconds
        course.best = [seconds, *(min(best, seconds) for best in course.best[1:])]
    else:
        course.best.append(min(before, seconds))
    if seconds < (course.fastest.seconds if course.fastest and course.fastest.seconds else math.inf):
        course.fastest = trial
    return course.best[-1] < before


class _Total:
    """The model's latency, kept up to date: the sum over the operators that can be measured."""

    def __init__(self, rows: Rows) -> None:
        self._weights = [operator.weight for operator in rows.operators]
        self._parts: dict[int, float] = {}

    def update(self, operator: int, best: float) -> None:
        self._parts[operator] = self._weights[operator] * best

    @property
    def latency(self) -> float:
        return sum(self._parts.values()) if self._parts else math.inf


class _Spans:
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


def _in_order(curve: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Times never go back; trials of one slot may end in any order."""
    ordered: list[tuple[float, float, int]] = []
    latest = 0.0
    for at, latency, operator in curve:
        latest = max(latest, at)
        ordered.append((latest, latency, operator))
    return ordered
