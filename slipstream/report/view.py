"""A session as one plain structure: what the page draws, `slipstream report --json` prints and tests compare.

Times are seconds, operators are named by their place in the list, what is not known is None. Long series are
thinned out so that 100,000 trials make a page of a few megabytes; what decides (every improvement, every count, every
best) is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipstream.program.sketch import Sketch
from slipstream.report.command import reproduce
from slipstream.report.course import Course, SlotSpan, follow
from slipstream.report.environment import environment
from slipstream.report.forecasts import Band, Forecasts
from slipstream.report.lineage import families
from slipstream.report.schedule_code import ScheduleCode, write_code
from slipstream.report.thinning import spread, spread_steps
from slipstream.session.benchmark import read_benchmark
from slipstream.session.budget import budget_of
from slipstream.session.directory import SessionDirectory, open_store
from slipstream.session.events import Remaining
from slipstream.session.history import OperatorHistory, Trial
from slipstream.session.models import label_of
from slipstream.session.shapes import shape_latencies
from slipstream.session.state_names import BANDWIDTH, PEAK_FLOPS, SHAPES, WEIGHTS, WINNERS
from slipstream.session.stored_history import StoredHistory
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
    _stored: StoredHistory = field(init=False)
    _forecasts: Forecasts = field(default_factory=Forecasts)
    _sketches: dict[str, tuple[Sketch, ScheduleCode]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stored = StoredHistory(self.directory.session)

    def structure(self, most_forecasts: int = MOST_FORECASTS) -> dict[str, Any]:
        """The structure as it is now. Forecasts beyond `most_forecasts` new ones are left to the next call."""
        with open_store(self.directory, read_only=True) as store:
            self._stored.read(store)
            chosen = _chosen(store, self._stored)
            self._read_sketches(store, {sketch for sketch, _ in chosen.values()})
            assert self._stored.record is not None
            budget = budget_of(store, self._stored.record)
        bands = self._forecasts.update(self._stored, most_forecasts)
        return _structure(self.directory, self._stored, follow(self._stored), chosen, self._sketches, bands, budget)

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


def _chosen(store: Store, stored: StoredHistory) -> dict[int, tuple[str, str]]:
    """The program of each operator: the one in the compiled model, or else the fastest measured."""
    winners = stored.saved.get(WINNERS, {})
    operators = stored.history.operators.values()
    fastest = {n: o.fastest.program for n, o in enumerate(operators) if o.fastest is not None}
    known = _programs(store, sorted(set(fastest.values())))
    chosen = {n: known[program] for n, program in fastest.items() if program in known}
    for n, key in enumerate(stored.history.operators):
        if key in winners and stored.state in ("finished", "interrupted"):
            sketch, decisions = winners[key]
            chosen[n] = (str(sketch), str(decisions))
    return chosen


def _programs(store: Store, numbers: list[int]) -> dict[int, tuple[str, str]]:
    """Digest of the sketch and decisions of programs, by their rows."""
    found: dict[int, tuple[str, str]] = {}
    for start in range(0, len(numbers), 500):
        part = numbers[start : start + 500]
        for number, sketch, decisions in store.database.rows(
            "SELECT program.id, sketch.digest, decisions FROM program JOIN sketch ON sketch.id = program.sketch "
            f"WHERE program.id IN ({', '.join('?' * len(part))})",
            part,
        ):
            found[number] = (sketch, decisions)
    return found


def _structure(
    directory: SessionDirectory,
    stored: StoredHistory,
    course: Course,
    chosen: Mapping[int, tuple[str, str]],
    sketches: Mapping[str, tuple[Sketch, ScheduleCode]],
    bands: Mapping[str, Sequence[Band]],
    budget: Any,
) -> dict[str, Any]:
    record, history = stored.record, stored.history
    assert record is not None
    start, latency = history.start_latency, history.latency
    remaining: Remaining = budget.remaining(record.elapsed, history.trials, start, latency)
    last = max([record.elapsed, course.defaults_end, *(span.end for span in course.spans)])
    trials = [trial for operator in history.operators.values() for trial in operator.trials]
    return {
        "format": FORMAT,
        "slipstream": VERSION,
        "session": {
            "id": record.id,
            "name": directory.path.name,
            "model": record.model_name,
            "models": list(directory.models),
            "state": stored.state,
            "reason": record.result.get("reason"),
            "fallback": record.result.get("fallback"),
            "created_at": record.created_at,
            "elapsed": last,
            "remaining": {"seconds": remaining.seconds, "trials": remaining.trials, "used": remaining.fraction_used},
            "budget": budget.to_json(),
            "left": stored.left and {**asdict(stored.left), "text": str(stored.left)},
        },
        "headline": {
            "start": _finite(start),
            "latency": _finite(latency),
            "end_to_end": _finite(record.result.get("end_to_end")),
            "whole_gain": record.result.get("whole_gain"),
            "bench": _bench(directory),
            "trials": history.trials,
            "default_trials": history.default_trials,
            "slots": history.given_slots,
        },
        "shapes": _shapes(directory, stored),
        "curve": [[_time(t), _short(s), n] for t, s, n in spread_steps(course.curve, MOST_CURVE)],
        "defaults_end": _time(course.defaults_end),
        "slots": [
            [s.operator, _time(s.start), _time(s.end), s.trials, _short(s.gain), s.number]
            for s in _fewer_slots(course.spans)
        ],
        "operators": _operators(stored, course, chosen, bands),
        "families": families(stored, chosen, sketches, _untuned(stored)),
        "sketches": _code(chosen, sketches),
        "split": _split(stored, course, last),
        "failures": _failures(trials, list(history.operators)),
        "origins": _origins(trials),
        "roofline": _roofline(stored),
        "environment": environment(directory, stored),
        "command": reproduce(record.options, budget.to_json()),
    }


def _operators(
    stored: StoredHistory,
    course: Course,
    chosen: Mapping[int, tuple[str, str]],
    bands: Mapping[str, Sequence[Band]],
) -> list[dict[str, Any]]:
    operators = stored.history.operators
    dots = max(20, min(MOST_DOTS_EACH, MOST_DOTS // max(1, len(operators))))
    steps = max(20, min(MOST_STEPS_EACH, 2 * MOST_DOTS // max(1, len(operators))))
    gains = [0.0] * len(operators)
    for span in course.spans:
        gains[span.operator] += span.gain
    time, calls = course.time.of, stored.saved.get(SHAPES, {})
    found = []
    for n, (key, own) in enumerate(operators.items()):
        program, trials = chosen.get(n), own.trials
        found.append(
            {
                "key": key,
                "name": own.name,
                "kinds": list(own.kinds),
                "weight": own.weight,
                "callers": [label for label, counts in calls.items() if key in counts],
                "flops": own.flops,
                "bytes": own.bytes,
                "start": _finite(own.start),
                "best": _finite(own.best),
                "trials": len(trials),
                "failures": own.row.failures,
                "slots": len(own.spans()),
                "spent": _time(own.seconds),
                "gain": _short(gains[n]),
                "steps": [[k, _time(time(trials[k])), _short(s)] for k, s in spread_steps(_steps(own), steps)],
                "dots": [[k, _time(time(trials[k])), _short(trials[k].seconds)] for k in spread(len(trials), dots)],
                "bands": [[b.trial, _short(b.low), _short(b.high), _short(b.mean), b.slot] for b in bands.get(key, ())],
                "sketch": program[0] if program else None,
                "decisions": program[1] if program else None,
                "origin": own.fastest.origin if own.fastest else None,
            }
        )
    return found


def _steps(own: OperatorHistory) -> list[tuple[int, float]]:
    """(trial, best) wherever the best became better; trials are counted from 0."""
    steps: list[tuple[int, float]] = []
    best = math.inf
    for k, trial in enumerate(own.trials):
        if trial.seconds < best:
            best = trial.seconds
            steps.append((k, best))
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


def _split(stored: StoredHistory, course: Course, elapsed: float) -> dict[str, float]:
    """Seconds by activity. Search, build and run are counted slot by slot, the rest by the last run of the session.

    Activities may go on side by side, several on several cores: what goes on while programs are built counts as itself
    and not as building, and where the rest still adds up to more than the session lasted, each gets its share of it.
    """
    assert stored.record is not None
    known = stored.record.result.get("split", {})
    split = {"search": course.search_seconds, "build": 0.0, "run": course.run_seconds}
    split |= {name: known[name] for name in ("schedule", "train", "store", "compile") if name in known}
    split["build"] = min(course.build_seconds, max(0.0, elapsed - sum(split.values())))
    total = max(elapsed, sum(split.values()))
    split = {name: seconds * elapsed / total for name, seconds in split.items()} if total else split
    return {name: _time(s) for name, s in (split | {"other": max(0.0, elapsed - sum(split.values()))}).items()}


def _failures(trials: Sequence[Trial], keys: Sequence[str]) -> list[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    places = {key: n for n, key in enumerate(keys)}
    for trial in trials:
        if trial.failure is None:
            continue
        kind = kinds.setdefault(trial.failure, {"kind": trial.failure, "count": 0, "operators": {}, "examples": []})
        place = places[trial.operator]
        kind["count"] += 1
        kind["operators"][place] = kind["operators"].get(place, 0) + 1
        said = {example["message"] for example in kind["examples"]}
        if len(kind["examples"]) < _EXAMPLES and trial.message and trial.message not in said:
            kind["examples"].append({"operator": place, "message": trial.message})
    for kind in kinds.values():
        most = sorted(kind["operators"].items(), key=lambda item: -item[1])[:10]
        kind["operators"] = [list(item) for item in most]
    return sorted(kinds.values(), key=lambda kind: -kind["count"])


def _origins(trials: Sequence[Trial]) -> list[list[Any]]:
    """[who proposed, trials, of which improved upon their operator's best], the busiest first."""
    counts: Counter[str] = Counter()
    best: dict[str, float] = {}
    improved: Counter[str] = Counter()
    for trial in trials:
        counts[trial.origin] += 1
        if trial.seconds < best.get(trial.operator, math.inf):
            improved[trial.origin] += trial.operator in best
            best[trial.operator] = trial.seconds
    return [[origin, count, improved[origin]] for origin, count in counts.most_common()]


def _roofline(stored: StoredHistory) -> dict[str, Any]:
    """The machine's limits as measured; unknown for remote devices, which only their owner can measure."""
    assert stored.record is not None
    remote = bool((stored.record.options.get("rpc") or [None])[0])
    peak, bandwidth = stored.saved.get(PEAK_FLOPS), stored.saved.get(BANDWIDTH)
    return {
        "peak": None if remote else _finite(peak),
        "bandwidth": None if remote else _finite(bandwidth),
        "remote": remote,
    }


def _untuned(stored: StoredHistory) -> set[int]:
    fastest = [operator.fastest for operator in stored.history.operators.values()]
    return {n for n, trial in enumerate(fastest) if trial is None or trial.origin == "default"}


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
    found = read_benchmark(directory)
    if found is None:
        return None
    return {name: found.get(name) for name in ("measured_at", "threads", "timings", "ratios")}


def _shapes(directory: SessionDirectory, stored: StoredHistory) -> list[dict[str, Any]]:
    """Each shape, or each of several models: its operators' sums, the compiled model's time, and how it compares."""
    assert stored.record is not None
    rows = [operator.row for operator in stored.history.operators.values()]
    whole = {row["shape"]: row["end_to_end"] for row in stored.record.result.get("shapes", ())}
    bench = {
        label_of(model, row.get("shape", "")): row["ratios"]
        for model in directory.models or ("",)
        if (found := read_benchmark(directory, model)) is not None
        for row in found.get("shapes", [found])
    }
    return [
        {
            "shape": row.shape,
            "start": _finite(row.start),
            "latency": _finite(row.latency),
            "end_to_end": _finite(row.end_to_end),
            "ratios": bench.get(row.shape, []),
            "weight": row.weight,
        }
        for row in shape_latencies(stored.saved.get(SHAPES, {}), rows, whole, stored.saved.get(WEIGHTS))
    ]


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _short(seconds: float | None) -> float | None:
    """Five digits are more than a measurement has, and a third of the bytes."""
    return float(f"{seconds:.5g}") if seconds is not None and math.isfinite(seconds) else None


def _time(seconds: float) -> float:
    return round(seconds, 3)
