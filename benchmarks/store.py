"""Speed of a store, from ten thousand trials to a million (5 minutes).

A store of synthetic trials is written, then the calls a session waits for are timed: opening it, the best of an
operator, its top ten, one more trial. With `--postgres URL` (of an empty database, without a password), only a store
there and a file beside it are measured: the same calls, and slots of 16 trials as a session writes them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.runner import run
from benchmarks.spread import table
from slipstream.store import OperatorRecord, ProgramRecord, Store, TrialRecord

OPERATORS, SKETCHES, SAMPLES = 200, 5, 10
FACTORS = (1, 2, 4, 7, 8, 14, 28, 32)
BATCH = 50_000
CALLS = {"open": 20, "best": 400, "top 10": 400, "append": 200}
SLOTS, SLOT_TRIALS = 20, 16
POSTGRES, _SLOT = "postgres", "a slot's trial"
QUICK = {"trials": [1_000, 10_000, 50_000]}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="in each store")
    parser.add_argument("--postgres", metavar="URL", help="an empty database, to be filled")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    if options.postgres:
        with TemporaryDirectory(dir=options.work) as folder:
            places = {"SQLite": Path(folder, "store.db"), "PostgreSQL": options.postgres}
            rng = {name: random.Random(options.seed) for name in places}
            yield POSTGRES, {name: measure_store(at, options.trials[0], rng[name]) for name, at in places.items()}
        return
    for trials in options.trials:
        with TemporaryDirectory(dir=options.work) as folder:
            yield str(trials), measure_store(Path(folder, "store.db"), trials, random.Random(options.seed))


def markdown(data: Mapping[str, Any]) -> str:
    files = sorted((data[part] for part in data if part != POSTGRES), key=lambda result: result["trials"])
    head = ["trials", "MB", "written in, s", *(f"{call}, ms" for call in CALLS)]
    text = "\n".join(table(head, [_cells(result, CALLS) for result in files])) + "\n"
    if POSTGRES in data:
        calls = [*CALLS, _SLOT]
        rows = [[name, *_cells(result, calls)] for name, result in data[POSTGRES].items()]
        head = ["store", *head, f"{_SLOT}, ms"]
        text += "\n## A file beside a server\n\n" + "\n".join(table(head, rows)) + "\n"
    return text


def _cells(result: Mapping[str, Any], calls: Iterable[str]) -> list[str]:
    timings = [result["milliseconds"][call] for call in calls]
    cells = [f"{timing['median']:.2f} (worst {timing['worst']:.1f})" for timing in timings]
    return [f"{result['trials']:,}", f"{result['megabytes']:.0f}", f"{result['build_seconds']:.0f}", *cells]


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    largest = max((data[part] for part in data if part != POSTGRES), key=lambda result: result["trials"])
    times = {f"{call} ms": f"{timing['median']:.2f}" for call, timing in largest["milliseconds"].items()}
    recorded = {
        f"{name} ms a trial": f"{result['milliseconds'][_SLOT]['median']:.1f}"
        for name, result in data.get(POSTGRES, {}).items()
    }
    return {"trials": f"{largest['trials']:,}", "MB": f"{largest['megabytes']:.0f}", **times, **recorded}


def measure_store(place: Path | str, trials: int, rng: random.Random) -> dict[str, Any]:
    """Build a store of `trials` synthetic trials and time the calls a session waits for."""
    began = time.perf_counter()
    hardware, keys = build(place, trials, rng)
    built = time.perf_counter() - began
    timings = {"open": timed(CALLS["open"], lambda: Store.open(place).close())}
    with Store.open(place) as store:
        size = store.database.bytes
        timings["best"] = timed(CALLS["best"], lambda: store.best(rng.choice(keys), hardware))
        timings["top 10"] = timed(CALLS["top 10"], lambda: store.top(rng.choice(keys), hardware, 10))
        extra = iter(make_trials(CALLS["append"], keys, hardware, rng))
        timings["append"] = timed(CALLS["append"], lambda: store.append_trial(next(extra)))
        store.add_model("made up", "made up", "")
        session, slot = store.create_session("made up", hardware, {}, {}), itertools.count()
        slots = timed(SLOTS, lambda: record_slot(store, session, next(slot), keys[0], hardware, rng))
        timings[_SLOT] = [seconds / SLOT_TRIALS for seconds in slots]
    return {
        "sqlite": sqlite3.sqlite_version,
        "trials": trials,
        "operators": OPERATORS,
        "megabytes": size / 1e6,
        "build_seconds": built,
        "milliseconds": {
            name: {"median": 1e3 * median(seconds), "worst": 1e3 * max(seconds), "calls": len(seconds)}
            for name, seconds in timings.items()
        },
    }


def record_slot(store: Store, session: str, slot: int, key: str, hardware: str, rng: random.Random) -> None:
    """All that a session writes of one slot."""
    trials = list(make_trials(SLOT_TRIALS, [key], hardware, rng))
    store.begin_slot(session, slot, key, [trial.program for trial in trials], 0.1, {})
    for position, trial in enumerate(trials):
        store.append_trial(replace(trial, session=session, slot=slot, position=position))
    store.finish_slot(session, slot, {})
    store.update_session(session, elapsed=float(slot))


def build(place: Path | str, trials: int, rng: random.Random) -> tuple[str, list[str]]:
    """Fill a new store; the digest of its hardware and the keys of its operators."""
    keys = [f"{number:020x}" for number in range(OPERATORS)]
    with Store.open(place) as store:
        hardware = store.add_hardware({"cpu": "made up", "threads": 2})
        store.add_operators(
            OperatorRecord(key, f"operator {key}", ("conv2d",), 10**8, 10**6, (((1, 28, 28, 128), "float32"),), "{}")
            for key in keys
        )
        for start in range(0, trials, BATCH):
            store.append_trials(make_trials(min(BATCH, trials - start), keys, hardware, rng))
    return hardware, keys


def make_trials(count: int, keys: list[str], hardware: str, rng: random.Random) -> Iterator[TrialRecord]:
    """Trials with ten samples and the decisions of a tiled convolution; one in ten failed."""
    for number in range(count):
        factors = rng.choices(FACTORS, k=28)
        decisions = json.dumps([*(factors[i : i + 4] for i in range(0, 28, 4)), number], separators=(",", ":"))
        failed = rng.random() < 0.1
        mean = rng.lognormvariate(-7, 1)
        yield TrialRecord(
            operator=rng.choice(keys),
            hardware=hardware,
            program=ProgramRecord(f"{rng.randrange(SKETCHES):020x}", decisions, "evolutionary"),
            samples=() if failed else tuple(mean * (1 + 0.01 * rng.random()) for _ in range(SAMPLES)),
            failure="run error" if failed else None,
            message="made up" if failed else "",
            verified=not failed,
            build_seconds=0.3,
            run_seconds=0.1,
            measured_at=1.7e9 + number,
        )


def timed(calls: int, call: Callable[[], Any]) -> list[float]:
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    run(__name__)
