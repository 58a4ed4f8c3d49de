"""How much memory and disk a long session takes, by trials (an hour).

A session with the default scheduler on the operators of MobileNet v2, in one process, with a measurer that only
pretends: programs are proposed, written out and stored as ever, but not built or run. (What building and running takes
is in other processes; `benchmarks.endurance` looks at those.) Once with the default search, and once with the random
one, which proposes more quickly and so comes further. What else runs on the machine matters to the seconds only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psutil

from benchmarks.runner import run

MARKS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
_NO_END = 10**9
QUICK = {"model": "tiny_cnn", "trials": 200, "searches": ["diffusion"]}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--trials", type=int, default=50_000)
    parser.add_argument("--searches", nargs="+", default=["diffusion", "random"])
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which it ends, whatever the trials")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for search in options.searches:
        yield search, run_session(search, options)


def run_session(search: str, options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.candidates import operators_of
    from slipstream.measure.types import Candidate, Measurement
    from slipstream.program.space import Space
    from slipstream.session.budget import Budget
    from slipstream.session.events import Event, Snapshot
    from slipstream.session.loop import Room
    from slipstream.store import Store
    from slipstream.target import resolve_target
    from tests.session.synthetic import SyntheticMeasurer, begin_session, make_session

    class Forgetful(SyntheticMeasurer):
        """Keeps no program, as the real measurers do."""

        def measure(self, programs: Iterable[Candidate]) -> Iterator[Measurement]:
            for measurement in super().measure(programs):
                self.measured.clear()
                yield measurement

    target = resolve_target()
    operators = {operator.key: operator for operator in operators_of(options.model, target)}
    path = options.work / "store.db"
    path.unlink(missing_ok=True)
    marks = [mark for mark in MARKS if mark < options.trials] + [options.trials]
    points: list[dict[str, float]] = []
    process, began, seen = psutil.Process(), time.monotonic(), 0

    def look() -> None:
        resident, stored = process.memory_info().rss / 1e6, path.stat().st_size / 1e6
        points.append({"trials": seen, "mb": resident, "store_mb": stored, "seconds": time.monotonic() - began})

    def watch(event: Event, snapshot: Snapshot) -> None:
        nonlocal seen
        seen += event.kind == "trial"
        if len(points) < len(marks) and seen >= marks[len(points)]:
            look()

    with Store.open(path) as store:
        settings = {"search": search, "patience_trials": _NO_END, "seed": options.seed}
        session_id = begin_session(store, operators, **settings)
        rooms = {key: Room(operator, Space(key, operator.func, target)) for key, operator in operators.items()}
        start = process.memory_info().rss / 1e6
        budget = Budget(trials=options.trials)
        watching: Any = {"watcher": watch, "stop": lambda: time.monotonic() - began > options.seconds}
        ended = make_session(store, session_id, Forgetful(), budget, rooms=rooms, **watching).run()
        if seen < options.trials:
            look()
    return {"operators": len(operators), "start_mb": start, "ended": ended, "points": points}


def markdown(data: Mapping[str, Any]) -> str:
    lines = ["| search | after trials | resident memory, MB | store, MB | ms a trial since the line above |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for search, result in data.items():
        lines.append(f"| {search} | 0 | {result['start_mb']:.0f} | | |")
        trials, seconds = 0.0, 0.0
        for point in result["points"]:
            each = 1e3 * (point["seconds"] - seconds) / (point["trials"] - trials)
            cells = [f"{point['trials']:,.0f}", f"{point['mb']:.0f}", f"{point['store_mb']:.1f}", f"{each:.1f}"]
            lines.append(f"| | {' | '.join(cells)} |")
            trials, seconds = point["trials"], point["seconds"]
    return "\n".join(lines) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for search, result in data.items():
        first, last = result["points"][0], result["points"][-1]
        more = 1e3 * (last["mb"] - first["mb"]) / max(last["trials"] - first["trials"], 1)
        found |= {f"{search}: trials": f"{last['trials']:,.0f}", f"{search}: MB": f"{last['mb']:.0f}"}
        found[f"{search}: KB a trial"] = f"{more:.1f}"
    return found


if __name__ == "__main__":
    run(__name__)
