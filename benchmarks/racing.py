"""What racing costs and what it saves, on recorded samples of real programs (half a minute; --record 100: 10 minutes).

The recording holds for every program a long series of samples. A replay draws the programs of an operator in random
order and measures them twice from the same series: with TVM's stock setting (number=3, repeat=1, min_repeat_ms=100:
one warm-up run, three runs, then as many as fill 100 ms), and by racing, with the near-ties timed again at the end. The
true time of a program is the median of its whole series.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.runner import RESULTS, run
from slipstream.measure.config import MeasureConfig, Racing
from slipstream.measure.timing.racing import runs_per_sample
from slipstream.measure.timing.sampling import race
from slipstream.measure.timing.settling import Settling, near_ties, settle
from slipstream.statistics import median

RECORDING = RESULTS / "racing_samples.json.gz"
QUICK = {"replays": 20}
_FIRST_RUN = 1.5  # a first run, cold, takes this many times a warm one
EVERYTHING = Racing(
    slack=(math.inf,), hopeless=math.inf, matters=math.inf, precision=0.0, least_samples=64, most_samples=64,
    most_seconds=0.25,
)  # fmt: skip


def record(count: int, seed: int) -> dict[str, Any]:
    """Time `count` random programs of each operator at length."""
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    from benchmarks.candidates import pick_operators, sample_programs
    from slipstream.machine.target import resolve_target
    from slipstream.measure import LocalMeasurer, reference_text

    target = resolve_target()
    operators = pick_operators(target)
    references = {operator.key: reference_text(operator.func) for operator in operators.values()}
    rng = np.random.default_rng(seed)
    series: dict[str, list[list[float]]] = {}
    noisy = 0
    with LocalMeasurer(target, references, MeasureConfig(racing=EVERYTHING)) as measurer:
        for kind, operator in operators.items():
            results = list(measurer.measure(sample_programs(operator, target, count, rng)))
            noisy += sum(m.noisy for m in results)
            series[kind] = [[float(f"{s:.4g}") for s in m.samples] for m in results if m.failure is None]
            print(f"{kind}: {len(series[kind])} programs", flush=True)
        drift = measurer.drift.worst
    return {"cpu": target.cpu, "threads": target.threads, "load": os.getloadavg(), "noisy": noisy, "worst_drift": drift,
            "series": series}  # fmt: skip


class Replayed:
    """One program's recorded samples, read in order from a random place, with a clock of their own."""

    def __init__(self, samples: list[float], rng: np.random.Generator) -> None:
        self._samples = samples
        self._at = int(rng.integers(len(samples)))
        self.seconds = 0.0

    def run(self) -> float:
        self._at = (self._at + 1) % len(self._samples)
        self.seconds += self._samples[self._at]
        return self._samples[self._at]

    def sample(self, number: int, repeat: int) -> list[float]:
        """As `time_evaluator` does it: one run that is not counted, then samples of `number` runs each."""
        self.run()
        values = [self.run() for _ in range(repeat)]
        self.seconds += (number - 1) * sum(values)
        return values

    def stock(self) -> float:
        """number=3, repeat=1, min_repeat_ms=100."""
        self.run()
        three = [self.run() for _ in range(3)]
        if sum(three) >= 0.1:
            return sum(three) / 3
        number = max(math.ceil(0.1 / (sum(three) / 3)) + 1, 5)
        # A recorded sample is an average over this many runs already.
        per_sample = runs_per_sample(sum(three) / 3, Racing())
        values = [self.run() for _ in range(max(1, round(number / per_sample)))]
        self.seconds += (number - len(values)) * sum(values) / len(values)
        return sum(values) / len(values)


def replay(series: list[list[float]], racing: Racing, settling: Settling, rng: np.random.Generator) -> dict[str, float]:
    """Tune one operator twice, on the same programs in the same order; true latencies of the winners and seconds."""
    truth = [median(samples) for samples in series]
    order = [int(i) for i in rng.permutation(len(series))]
    fixed_seconds = raced_seconds = settled_seconds = 0.0
    fixed: dict[int, float] = {}
    raced: dict[int, float] = {}
    best = math.inf
    for i in order:
        program = Replayed(series[i], rng)
        program.seconds = _FIRST_RUN * truth[i]
        fixed[i] = program.stock()
        fixed_seconds += program.seconds
        program = Replayed(series[i], rng)
        first = program.seconds = _FIRST_RUN * truth[i]
        taken = race(program.run, program.sample, first, best, racing, clock=lambda p=program: p.seconds)
        raced[i] = median(taken.seconds)
        best = min(best, raced[i])
        raced_seconds += program.seconds
    finalists = [order[i] for i in near_ties([raced[i] for i in order], settling)]
    contenders = [Replayed(series[i], rng) for i in finalists]
    numbers = [runs_per_sample(truth[i], racing) for i in finalists]
    standing = settle(lambda k: contenders[k].sample(numbers[k], 1)[0], len(finalists), settling, rng)
    settled_seconds = sum(contender.seconds for contender in contenders)
    return {
        "fixed": truth[min(fixed, key=lambda i: fixed[i])],
        "raced": truth[finalists[standing.winner]],
        "true_best": min(truth),
        "fixed_seconds": fixed_seconds,
        "raced_seconds": raced_seconds + settled_seconds,
        "settled_seconds": settled_seconds,
    }


def study(recording: dict[str, Any], replays: int, seed: int) -> dict[str, Any]:
    result: dict[str, Any] = {"replays": replays, "noisy": recording["noisy"], "operators": {}}
    for kind, series in recording["series"].items():
        rng = np.random.default_rng(seed)
        runs = [replay(series, Racing(), Settling(), rng) for _ in range(replays)]
        ratio = np.array([run["raced"] / run["fixed"] for run in runs])
        time_ratio = np.array([run["raced_seconds"] / run["fixed_seconds"] for run in runs])
        result["operators"][kind] = {
            "programs": len(series),
            "latency_ratio_mean": float(ratio.mean()),
            "latency_ratio_p95": float(np.quantile(ratio, 0.95)),
            "latency_ratio_worst": float(ratio.max()),
            "raced_above_true_best_mean": float(np.mean([run["raced"] / run["true_best"] - 1 for run in runs])),
            "fixed_above_true_best_mean": float(np.mean([run["fixed"] / run["true_best"] - 1 for run in runs])),
            "time_ratio_mean": float(time_ratio.mean()),
            "time_ratio_worst": float(time_ratio.max()),
            "fixed_seconds": float(np.mean([run["fixed_seconds"] for run in runs])),
            "raced_seconds": float(np.mean([run["raced_seconds"] for run in runs])),
            "settled_seconds": float(np.mean([run["settled_seconds"] for run in runs])),
        }
    return result


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", type=int, metavar="PROGRAMS", help="record so many programs of each operator first")
    parser.add_argument("--replays", type=int, default=200)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.record:
        RECORDING.write_bytes(gzip.compress(json.dumps(record(options.record, options.seed)).encode(), mtime=0))
    return study(json.loads(gzip.decompress(RECORDING.read_bytes())), options.replays, options.seed)


def markdown(data: Mapping[str, Any]) -> str:
    lines = ["| | programs | winner's true latency, racing / stock setting | measuring time | s instead of s |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for kind, row in data["operators"].items():
        latency = f"{row['latency_ratio_mean']:.3f} mean, {row['latency_ratio_worst']:.3f} at worst"
        seconds = f"{row['raced_seconds']:.1f}, {row['fixed_seconds']:.1f}"
        lines.append(f"| {kind} | {row['programs']} | {latency} | {row['time_ratio_mean']:.2f} | {seconds} |")
    noisy = f"{data['noisy']} series of the recording were flagged noisy; {data['replays']} replays each."
    return "\n".join([*lines, "", noisy, ""])


if __name__ == "__main__":
    run(__name__)
