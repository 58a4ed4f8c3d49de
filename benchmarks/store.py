"""How quick a store with a million trials is: opening it, the best of an operator, the top ten, one more trial.

python -m benchmarks.store [--trials 1000000] [--output benchmarks/results/store.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from slipstream.store import OperatorRecord, ProgramRecord, Store, TrialRecord

OPERATORS, SKETCHES, SAMPLES = 200, 5, 10
FACTORS = (1, 2, 4, 7, 8, 14, 28, 32)
BATCH = 50_000
CALLS = {"open": 20, "best": 400, "top 10": 400, "append": 200}
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = measure(Path(directory) / "store.db", arguments.trials)
    print(f"{result['trials']} trials, {result['megabytes']:.0f} MB, written in {result['build_seconds']:.0f} s")
    for name, figures in result["milliseconds"].items():
        print(f"{name:8s} median {figures['median']:8.3f} ms   worst {figures['worst']:8.3f} ms")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def measure(path: Path, trials: int) -> dict[str, Any]:
    """Build a store of `trials` made-up trials and time the calls a session waits for."""
    rng = random.Random(SEED)
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
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "sqlite": sqlite3.sqlite_version,
        "load_average": os.getloadavg(),
        "trials": trials,
        "operators": OPERATORS,
        "seed": SEED,
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
    main()
