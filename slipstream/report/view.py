"""A session as one plain structure: what the page draws, `slipstream report --json` prints and tests compare.

Times are seconds, operators are named by their place in the list, what is not known is None. Long series are
thinned out so that 100,000 trials make a page of a few megabytes; what decides (every improvement, every count, every
best) is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.program.sketch import Sketch
from slipstream.report.command import reproduce
from slipstream.report.course import Course, OperatorCourse, SlotSpan, follow
from slipstream.report.environment import environment
from slipstream.report.forecasts import Band, Forecasts
from slipstream.report.lineage import families
from slipstream.report.reading import Rows, programs
from slipstream.report.schedule_code import ScheduleCode, write_code
from slipstream.report.thinning import spread, spread_steps
from slipstream.session.benchmark import read_benchmark
from slipstream.session.budget import budget_of
from slipstream.session.directory import SessionDirectory, open_store
from slipstream.session.events import Remaining
from slipstream.session.state_names import BANDWIDTH, PEAK_FLOPS, WINNERS
from slipstream.store import Store
from slipstream.version import VERSION

FORMAT = 1
MOST_CURVE, MOST_SLOTS, MOST_DOTS, MOST_DOTS_EACH, MOST_STEPS_EACH = 2000, 20_000, 24_000, 400, 200
MOST_CODE = 1_500_000  # characters of schedules in one page
MOST_FORECASTS = 400
_EXAMPLES = 3


@dataclass
class SessionView:
    """One session, read again whenever `structure` is called."""

    directory: SessionDirectory
    _rows: Rows = field(init=False)
    _forecasts: Forecasts = field(default_factory=Forecasts)
    _sketches: dict[str, tuple[Sketch, ScheduleCode]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = Rows(self.directory.session)

    def structure(self, most_forecasts: int = MOST_FORECASTS) -> dict[str, Any]:
        """The structure as it is now. Forecasts beyond `most_forecasts` new ones are left to the next call."""
        with open_store(self.directory, read_only=True) as store:
            self._rows.read(store)
            course = follow(self._rows)
            chosen = _chosen(store, self._rows, course)
            self._read_sketches(store, {sketch for sketch, _ in chosen.values()})
            assert self._rows.record is not None
            budget = budget_of(store, self._rows.record)
        bands = self._forecasts.update(self._rows, course, most_forecasts)
        return _structure(self.directory, self._rows, course, chosen, self._sketches, bands, budget)

    @property
    def unfinished(self) -> bool:
        """Whether the next structure will have forecasts that the last one had not, though nothing else changed."""
        return self._forecasts.pending

    def _read_sketches(self, store: Store, wanted: set[str]) -> None:
        for digest in wanted - set(self._sketches):
            text = store.sketch(digest)
            try:
                sketch = Sketch(text or "[]")
                self._sketches[digest] = sketch, write_code(sketch)
            except (ValueError, KeyError, IndexError, TypeError):
                self._sketches[digest] = Sketch("[]"), ScheduleCode("# this sketch cannot be read", ())


def session_structure(directory: str | Path) -> dict[str, Any]:
    """The structure of the session in `directory`."""
    return SessionView(SessionDirectory.read(directory)).structure()


def _chosen(store: Store, rows: Rows, course: Course) -> dict[int, tuple[str, str]]:
    """The program of each operator: the one in the compiled model, or else the fastest measured."""
    winners = rows.kept.get(WINNERS, {})
    fastest = {n: c.fastest.program for n, c in enumerate(course.operators) if c.fastest is not None}
    known = programs(store, sorted(set(fastest.values())))
    chosen = {n: known[program] for n, program in fastest.items() if program in known}
    for n, operator in enumerate(rows.operators):
        if operator.key in winners and rows.state in ("finished", "interrupted"):
            sketch, decisions = winners[operator.key]
            chosen[n] = (str(sketch), str(decisions))
    return chosen


def _structure(
    directory: SessionDirectory,
    rows: Rows,
    course: Course,
    chosen: Mapping[int, tuple[str, str]],
    sketches: Mapping[str, tuple[Sketch, ScheduleCode]],
    bands: Mapping[int, Sequence[Band]],
    budget: Any,
) -> dict[str, Any]:
    record = rows.record
    assert record is not None
    remaining: Remaining = budget.remaining(record.elapsed, len(rows.trials), course.start_latency, course.latency)
    last = max([record.elapsed, course.defaults_end, *(span.end for span in course.spans[-1:])])
    return {
        "format": FORMAT,
        "slipstream": VERSION,
        "session": {
            "id": record.id,
            "name": directory.path.name,
            "model": record.model_name,
            "state": rows.state,
            "reason": record.result.get("reason"),
            "fallback": record.result.get("fallback"),
            "created_at": record.created_at,
            "elapsed": last,
            "remaining": {"seconds": remaining.seconds, "trials": remaining.trials, "used": remaining.fraction_used},
            "budget": budget.to_json(),
        },
        "headline": {
            "start": _finite(course.start_latency),
            "latency": _finite(course.latency),
            "end_to_end": _finite(record.result.get("end_to_end")),
            "bench": _bench(directory),
            "trials": len(rows.trials),
            "slots": len(course.spans),
        },
        "curve": [[_time(t), _short(s), n] for t, s, n in spread_steps(course.curve, MOST_CURVE)],
        "defaults_end": _time(course.defaults_end),
        "slots": [
            [s.operator, _time(s.start), _time(s.end), s.trials, _short(s.gain), s.number]
            for s in _fewer_slots(course.spans)
        ],
        "operators": _operators(rows, course, chosen, bands),
        "families": families(rows, chosen, sketches, _untuned(course)),
        "sketches": _code(chosen, sketches),
        "split": _split(rows, course, last),
        "failures": _failures(rows),
        "origins": _origins(rows),
        "roofline": _roofline(rows),
        "environment": environment(directory, rows),
        "command": reproduce(record.options, budget.to_json()),
    }


def _operators(
    rows: Rows, course: Course, chosen: Mapping[int, tuple[str, str]], bands: Mapping[int, Sequence[Band]]
) -> list[dict[str, Any]]:
    dots = max(20, min(MOST_DOTS_EACH, MOST_DOTS // max(1, len(rows.operators))))
    steps = max(20, min(MOST_STEPS_EACH, 2 * MOST_DOTS // max(1, len(rows.operators))))
    slots = Counter(span.operator for span in course.spans)
    gains: Counter[int] = Counter()
    for span in course.spans:
        gains[span.operator] += span.gain  # type: ignore[assignment]
    found = []
    for n, (row, own) in enumerate(zip(rows.operators, course.operators, strict=True)):
        program = chosen.get(n)
        found.append(
            {
                "key": row.key,
                "name": row.name,
                "kinds": list(row.kinds),
                "weight": row.weight,
                "flops": row.flops,
                "bytes": row.bytes,
                "start": _finite(own.start),
                "best": _finite(own.best[-1]),
                "trials": len(own.seconds),
                "failures": own.failures,
                "slots": slots[n],
                "spent": _time(own.spent),
                "gain": _short(float(gains[n])),
                "steps": [[k, _time(t), _short(s)] for k, t, s in spread_steps(_steps(own), steps)],
                "dots": [[k, _time(own.times[k]), _short(own.seconds[k])] for k in spread(len(own.seconds), dots)],
                "bands": [[b.trial, _short(b.low), _short(b.high), _short(b.mean), b.slot] for b in bands.get(n, ())],
                "sketch": program[0] if program else None,
                "decisions": program[1] if program else None,
                "origin": own.fastest.origin if own.fastest else None,
            }
        )
    return found


def _steps(own: OperatorCourse) -> list[tuple[int, float, float]]:
    """(trial, time, best) wherever the best became better; trials are counted from 0."""
    steps: list[tuple[int, float, float]] = []
    best = math.inf
    for k, seconds in enumerate(own.seconds):
        if seconds is not None and seconds < best:
            best = seconds
            steps.append((k, own.times[k], best))
    return steps


def _fewer_slots(spans: Sequence[SlotSpan]) -> list[SlotSpan]:
    """All slots, or, where there are very many, neighbours of one operator and then any neighbours as one."""
    merged = list(spans)
    while len(merged) > MOST_SLOTS:
        pairs = [merged[n : n + 2] for n in range(0, len(merged), 2)]
        merged = [
            SlotSpan(
                pair[0].number,
                max(pair, key=lambda s: s.end - s.start).operator,
                pair[0].start,
                pair[-1].end,
                sum(s.trials for s in pair),
                sum(s.gain for s in pair),
                pair[-1].open,
            )
            for pair in pairs
        ]
    return merged


def _split(rows: Rows, course: Course, elapsed: float) -> dict[str, float]:
    """Seconds by activity. Search, build and run are counted slot by slot; the last run of the session knows more."""
    assert rows.record is not None
    split = {"search": course.search_seconds, "build": course.build_seconds, "run": course.run_seconds}
    known = rows.record.result.get("split", {})
    split |= {name: known[name] for name in ("schedule", "train", "store", "compile") if name in known}
    return {name: _time(s) for name, s in (split | {"other": max(0.0, elapsed - sum(split.values()))}).items()}


def _failures(rows: Rows) -> list[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for trial in rows.trials:
        if trial.failure is None:
            continue
        kind = kinds.setdefault(trial.failure, {"kind": trial.failure, "count": 0, "operators": {}, "examples": []})
        kind["count"] += 1
        kind["operators"][trial.operator] = kind["operators"].get(trial.operator, 0) + 1
        said = {example["message"] for example in kind["examples"]}
        if len(kind["examples"]) < _EXAMPLES and trial.message and trial.message not in said:
            kind["examples"].append({"operator": trial.operator, "message": trial.message})
    for kind in kinds.values():
        most = sorted(kind["operators"].items(), key=lambda item: -item[1])[:10]
        kind["operators"] = [list(item) for item in most]
    return sorted(kinds.values(), key=lambda kind: -kind["count"])


def _origins(rows: Rows) -> list[list[Any]]:
    """[who proposed, trials, of which improved upon their operator's best], the busiest first."""
    trials: Counter[str] = Counter()
    best: dict[int, float] = {}
    improved: Counter[str] = Counter()
    for trial in rows.trials:
        trials[trial.origin] += 1
        if trial.seconds is not None and trial.seconds < best.get(trial.operator, math.inf):
            improved[trial.origin] += trial.operator in best
            best[trial.operator] = trial.seconds
    return [[origin, count, improved[origin]] for origin, count in trials.most_common()]


def _roofline(rows: Rows) -> dict[str, Any]:
    """The machine's limits as measured; unknown for remote devices, which only their owner can measure."""
    assert rows.record is not None
    remote = bool((rows.record.options.get("rpc") or [None])[0])
    peak, bandwidth = rows.kept.get(PEAK_FLOPS), rows.kept.get(BANDWIDTH)
    return {
        "peak": None if remote else _finite(peak),
        "bandwidth": None if remote else _finite(bandwidth),
        "remote": remote,
    }


def _untuned(course: Course) -> set[int]:
    return {n for n, own in enumerate(course.operators) if own.fastest is None or own.fastest.origin == "default"}


def _code(
    chosen: Mapping[int, tuple[str, str]], sketches: Mapping[str, tuple[Sketch, ScheduleCode]]
) -> dict[str, dict[str, Any]]:
    """The schedules as code with marks, until the page would become too large."""
    found: dict[str, dict[str, Any]] = {}
    room = MOST_CODE
    for digest in dict.fromkeys(sketch for sketch, _ in chosen.values()):
        code = sketches[digest][1]
        room -= len(code.code)
        if room < 0:
            break
        decided = [[d.label, d.kind, list(d.candidates)] for d in code.decided]
        found[digest] = {"code": code.code, "decided": decided}
    return found


def _bench(directory: SessionDirectory) -> dict[str, Any] | None:
    found = read_benchmark(directory.path)
    if found is None:
        return None
    return {name: found.get(name) for name in ("measured_at", "threads", "timings", "ratios")}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _short(seconds: float | None) -> float | None:
    """Five digits are more than a measurement has, and a third of the bytes."""
    return float(f"{seconds:.5g}") if seconds is not None and math.isfinite(seconds) else None


def _time(seconds: float) -> float:
    return round(seconds, 3)
