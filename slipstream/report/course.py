"""How a session went: every operator's best after each trial, the model's latency over time, what slots gained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slipstream.report.reading import Rows, SlotRow, TrialRow
from slipstream.report.session_time import SessionTime


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
    playback = _Playback(rows)
    for group in playback.time.groups:
        playback.play(group)
    return playback.course()


class _Playback:
    def __init__(self, rows: Rows) -> None:
        self.time = SessionTime(rows)
        self._rows = rows
        self._courses = [OperatorCourse() for _ in rows.operators]
        self._total = _Total(rows)
        self._curve: list[tuple[float, float, int]] = []
        self._spans: list[SlotSpan] = []
        self._by_slot: dict[int, list[TrialRow]] = {}
        for trial in rows.trials:
            self._by_slot.setdefault(trial.slot, []).append(trial)

    def play(self, group: list[SlotRow]) -> None:
        """Default slots come together, before all others; every other slot comes alone."""
        times = self.time.times(group, self._by_slot)
        for slot in group:
            course, trials = self._courses[slot.operator], self._by_slot.get(slot.number, [])
            before = course.best[-1]
            if not slot.default:
                course.starts.append((len(course.best) - 1, slot.number))
                course.spent += slot.search_seconds
            for trial in trials:
                if _add(course, trial, times[id(trial)], default=slot.default and trial.position == 0):
                    self._total.update(slot.operator, course.best[-1])
                    if not slot.default:
                        self._curve.append((times[id(trial)], self._total.latency, slot.operator))
            if not slot.default:
                self._end_slot(slot, trials, before - course.best[-1])
        if group[0].default:
            self._curve.append((self.time.defaults_end, self._total.latency, -1))

    def _end_slot(self, slot: SlotRow, trials: list[TrialRow], faster: float) -> None:
        gain = self._rows.operators[slot.operator].weight * faster
        start, end = self.time.span(slot, trials)
        self._spans.append(
            SlotSpan(
                slot.number,
                slot.operator,
                start,
                end,
                len(trials),
                gain if math.isfinite(gain) else 0.0,
                slot.ended is None,
            )
        )

    def course(self) -> Course:
        searched = sum(slot.search_seconds for slot in self._rows.slots)
        ran = sum(trial.run_seconds for trial in self._rows.trials)
        measured = sum(span.end - span.start for span in self._spans)
        measured += self.time.defaults_end - self.time.defaults_start
        start = self._start_latency()
        return Course(
            operators=self._courses,
            curve=self._whole_curve(start),
            spans=self._spans,
            start_latency=start,
            latency=self._total.latency if self._is_complete() else math.inf,
            defaults_end=self.time.defaults_end,
            search_seconds=searched,
            run_seconds=ran,
            build_seconds=max(0.0, measured - searched - ran),
        )

    def _is_complete(self) -> bool:
        """Whether the default program of every operator has been timed."""
        timed = {slot.operator for slot in self._rows.slots if slot.default and slot.ended is not None}
        return bool(timed) and len(timed) == len(self._rows.operators)

    def _start_latency(self) -> float:
        starts = zip(self._rows.operators, self._courses, strict=True)
        known = [operator.weight * own.start for operator, own in starts if math.isfinite(own.start)]
        return sum(known) if known and self._is_complete() else math.inf

    def _whole_curve(self, start: float) -> list[tuple[float, float, int]]:
        """From the default programs on; what the store knew before may be better than these at once."""
        if not math.isfinite(start):
            return []
        known_before = self._curve[0][1] < start and not math.isclose(self._curve[0][1], start)
        curve = self._curve if known_before else self._curve[1:]
        return _in_order([(self.time.defaults_end, start, -1), *curve])


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


def _in_order(curve: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Times never go back; trials of one slot may end in any order."""
    ordered: list[tuple[float, float, int]] = []
    latest = 0.0
    for at, latency, operator in curve:
        latest = max(latest, at)
        ordered.append((latest, latency, operator))
    return ordered
