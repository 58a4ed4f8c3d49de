"""Speed of a store, from ten thousand trials to a million (5 minutes).

A store of synthetic trials is written, then the calls a session waits for are timed: opening it, the best of an
operator, its top ten, one more trial.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
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
QUICK = {"trials": [1_000, 10_000, 50_000]}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="in each store")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for trials in options.trials:
        with TemporaryDirectory(dir=options.work) as folder:
            yield str(trials), measure_store(Path(folder, "store.db"), trials, random.Random(options.seed))


def markdown(data: Mapping[str, Any]) -> str:
    rows = []
    for result in sorted(data.values(), key=lambda result: result["trials"]):
        timings = [result["milliseconds"][call] for call in CALLS]
        cells = [f"{timing['median']:.2f} (worst {timing['worst']:.1f})" for timing in timings]
        rows.append([f"{result['trials']:,}", f"{result['megabytes']:.0f}", f"{result['build_seconds']:.0f}", *cells])
    return "\n".join(table(["trials", "MB", "written in, s", *(f"{call}, ms" for call in CALLS)], rows)) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    largest = max(data.values(), key=lambda result: result["trials"])
    times = {f"{call} ms": f"{timing['median']:.2f}" for call, timing in largest["milliseconds"].items()}
    return {"trials": f"{largest['trials']:,}", "MB": f"{largest['megabytes']:.0f}", **times}


def measure_store(path: Path, trials: int, rng: random.Random) -> dict[str, Any]:
    """Build a store of `trials` synthetic trials and time the calls a session waits for."""
    began = time.perf_counter()
    hardware, keys = build(path, trials, rng)
    built = time.perf_counter() - began
    size = path.stat().st_size
    timings = {"open": timed(CALLS["open"], lambda: Store.open(path).close())}
    with Store.open(path) as store:
        timings["best"] = timed(CALLS["best"], lambda: store.best(rng.choice(keys), hardware))
        timings["top 10"] = timed(CALLS["top 10"], lambda: store.top(rng.choice(keys), hardware, 10))
        extra = iter(make_trials(CALLS["append"], keys, hardware, rng))
        timings["append"] = timed(CALLS["append"], lambda: store.append_trial(next(extra)))
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


def build(path: Path, trials: int, rng: random.Random) -> tuple[str, list[str]]:
    """Fill a new store; the digest of its hardware and the keys of its operators."""
    keys = [f"{number:020x}" for number in range(OPERATORS)]
    with Store.open(path) as store:
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
