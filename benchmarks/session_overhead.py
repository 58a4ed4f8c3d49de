"""Overhead of a session per slot besides search, build and run, by number of operators (4 minutes).

A model of synthetic operators on a simulated measurer.
The figure is the time from the end of one slot to the end of the next without the search: choosing the operator,
writing the slot and its trials down, bookkeeping and events. First every operator is given a slot; then each scheduler
goes on from there with slots of the usual size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tvm import te, topi

from benchmarks.runner import run
from slipstream.graph.describe.key import operator_key
from slipstream.graph.describe.names import describe
from slipstream.graph.operators import Operator, count_flops
from slipstream.machine.target import resolve_target
from slipstream.program.space import Space
from slipstream.search.random import Random
from slipstream.session.budget import Budget
from slipstream.session.events import Event, Snapshot
from slipstream.session.loop import Session
from slipstream.session.operator_trials import OperatorTrials
from slipstream.session.settings import Settings
from slipstream.store import Store
from tests.session.synthetic import SyntheticMeasurer, begin_session, make_session

SCHEDULERS = ("round_robin", "gradient", "dynatune")
WARM_UP_TRIALS = 2
QUICK = {"operators": [10, 100], "slots": 20}


class RealTimeMeasurer(SyntheticMeasurer):
    """The synthetic measurer, on the real clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = RealClock()


class RealClock:
    """The real clock, where a simulated one is expected."""

    def now(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """A trial takes no time at all."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operators", type=int, nargs="+", default=[10, 30, 100, 300, 1000])
    parser.add_argument("--slots", type=int, default=60)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for count in options.operators:
        with tempfile.TemporaryDirectory(dir=options.work) as directory:
            yield str(count), compare(Path(directory), count, options.slots)


def compare(directory: Path, count: int, slots: int) -> dict[str, Any]:
    """Give every operator a slot; then let each scheduler go on from there."""
    spaces = {
        operator.key: (operator, Space(operator.key, operator.func, resolve_target())) for operator in made(count)
    }
    began = time.perf_counter()
    with Store.open(directory / "warm.db") as store:
        settings: dict[str, Any] = {"scheduler": "round_robin", "search": "random", "slot_trials": WARM_UP_TRIALS}
        begin_session(store, {key: operator for key, (operator, _) in spaces.items()}, **settings)
        go_on(store, spaces, Budget(trials=count * (1 + WARM_UP_TRIALS)))
    warm = time.perf_counter() - began
    figures = {}
    for scheduler in SCHEDULERS:
        path = directory / f"{scheduler}.db"
        shutil.copy(directory / "warm.db", path)
        figures[scheduler] = _measure_scheduler(path, scheduler, spaces, slots)
    return {
        "operators": count,
        "slots": slots,
        "slot_trials": Settings().slot_trials,
        "warm_up_seconds": warm,
        "schedulers": figures,
    }


def markdown(data: Mapping[str, Any]) -> str:
    lines = [f"| milliseconds a slot, median (mean, worst) | {' | '.join(SCHEDULERS)} | resuming, s |"]
    lines += ["| --- |" + " --- |" * (len(SCHEDULERS) + 1)]
    for count in sorted(data, key=int):
        rows = [data[count]["schedulers"][scheduler] for scheduler in SCHEDULERS]
        cells = [f"{row['median_ms']:.1f} ({row['mean_ms']:.1f}, {row['worst_ms']:.0f})" for row in rows]
        lines.append(f"| {int(count):,} operators | {' | '.join(cells)} | {rows[-1]['resume_seconds']:.1f} |")
    one = next(iter(data.values()))
    return "\n".join([*lines, "", f"{one['slots']} slots of {one['slot_trials']} trials, simulated measurements.", ""])


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    """Median milliseconds a slot."""
    return {
        f"{scheduler} {count}": f"{row['median_ms']:.0f}"
        for count, result in data.items()
        for scheduler, row in result["schedulers"].items()
    }


def _measure_scheduler(path: Path, scheduler: str, spaces: Any, slots: int) -> dict[str, Any]:
    with Store.open(path) as store:
        record = store.sessions()[0]
        options = {**record.options, "settings": Settings(scheduler=scheduler, search="random").to_json()}
        # A session's settings never change; this is a copy of its store, made to compare schedulers.
        store.database.execute("UPDATE session SET options = ?", (json.dumps(options),))
        began = time.perf_counter()
        session, ends = go_on(store, spaces, Budget(), slots=slots)
        resumed = ends[0][0] - began
    overheads = [
        1e3 * ((end - start) - (searched - before)) for (start, before), (end, searched) in itertools.pairwise(ends)
    ]
    return {
        "median_ms": median(overheads),
        "mean_ms": fmean(overheads),
        "worst_ms": max(overheads),
        "resume_seconds": resumed,
        "split_seconds": {name: round(seconds, 3) for name, seconds in session.snapshot.split.items()},
        "overheads_ms": [round(value, 2) for value in overheads],
    }


def go_on(
    store: Store, spaces: Any, budget: Budget, slots: int | None = None
) -> tuple[Session, list[tuple[float, float]]]:
    """Go on with the store's session; when each slot ended, and the seconds searched by then."""
    ends: list[tuple[float, float]] = []

    def watch(event: Event, snapshot: Snapshot) -> None:
        if event.kind == "slot_done":
            ends.append((time.perf_counter(), snapshot.split.get("search", 0.0)))

    trials = {key: OperatorTrials(operator, space) for key, (operator, space) in spaces.items()}
    session = make_session(
        store,
        store.sessions()[0].id,
        RealTimeMeasurer(),
        budget,
        watcher=watch,
        stop=lambda: slots is not None and len(ends) > slots,
        trials=trials,
        proposer=Random(),
    )
    session.run()
    return session, ends


def made(count: int) -> list[Operator]:
    """`count` different small operators of ten kinds."""
    found: dict[str, Operator] = {}
    size = 2
    while len(found) < count:
        for make in MAKERS:
            func = te.create_prim_func(make(size))
            key = operator_key(func)
            name, kinds = describe(func)
            found[key] = Operator(key, name, kinds, 1 + size % 4, count_flops(func), 0, (), (name,), func)
        size += 1
    return list(found.values())[:count]


def _vector(size: int) -> Any:
    return te.placeholder((4 * size,), name="x")


def _matrix(size: int) -> Any:
    return te.placeholder((8, 4 * size), name="a")


def _matmul(size: int) -> tuple[Any, ...]:
    a, b = _matrix(size), te.placeholder((4 * size, 16), name="b")
    return a, b, topi.matmul(a, b)


def _matmul_relu(size: int) -> tuple[Any, ...]:
    a, b, product = _matmul(size)
    return a, b, topi.nn.relu(product)


MAKERS: tuple[Callable[[int], tuple[Any, ...]], ...] = (
    _matmul,
    _matmul_relu,
    lambda size: ((x := _vector(size)), topi.exp(x)),
    lambda size: ((x := _vector(size)), topi.nn.relu(x)),
    lambda size: ((x := _vector(size)), topi.tanh(x)),
    lambda size: ((x := _matrix(size)), topi.sum(x, axis=1)),
    lambda size: ((x := _matrix(size)), topi.max(x, axis=1)),
    lambda size: ((x := _matrix(size)), topi.transpose(x)),
    lambda size: ((x := _matrix(size)), topi.nn.softmax(x)),
    lambda size: ((x := _matrix(size)), (y := te.placeholder((8, 4 * size), name="y")), topi.add(x, y)),
)


if __name__ == "__main__":
    run(__name__)
