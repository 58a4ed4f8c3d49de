"""Tuning on an NVIDIA GPU: trials a second, how soon the latency of MetaSchedule's algorithm is reached, and the result
against PyTorch.

    python -m benchmarks.gpu --model zoo:resnet18 --budget 2m --preset-budget 5m -o resnet18.json

Both tune the same model on the same device with the same measurer, one after the other. The file is written after
every step. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import slipstream
from slipstream.cli.tvm_import import import_tvm_without_torch
from slipstream.cuda_device import this_device
from slipstream.session.budget import parse_duration
from slipstream.session.events import Event, Snapshot
from slipstream.target import available_cores


class Recorder:
    """Notes when phases begin, when trials end and when the model gets faster."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, float]] = []
        self.trials: list[tuple[float, str, str | None]] = []
        self.curve: list[tuple[float, float]] = []

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        at = round(event.elapsed, 3)
        if event.kind == "phase" and (not self.phases or self.phases[-1][0] != snapshot.phase):
            self.phases.append((snapshot.phase, at))
        elif event.kind == "trial":
            failure = event.data["failure"]
            said = None if failure is None else f"{failure}: {event.data['message']}"
            self.trials.append((at, str(event.data["origin"]), said))
        elif event.kind == "improved":
            self.curve.append((at, snapshot.latency))

    def rate(self) -> float:
        """Trials a second while it tuned, thinking included."""
        begins = dict(reversed(self.phases))
        start, end = begins["tune"], begins.get("settle", self.trials[-1][0])
        return sum(start < at <= end for at, _, _ in self.trials) / (end - start)


def tune(model: str, folder: Path, budget: float, **options: Any) -> dict[str, Any]:
    recorder = Recorder()
    began = time.monotonic()
    result = slipstream.tune(model, folder, target="cuda", budget=budget, callbacks=[recorder], **options)
    return {
        "budget_seconds": budget,
        "wall_seconds": time.monotonic() - began,
        "trials": result.trials,
        "trials_per_second": recorder.rate(),
        "failures": result.failures,
        "start_latency": result.start_latency,
        "latency": result.latency,
        "end_to_end": result.end_to_end,
        "split": result.split,
        "phases": recorder.phases,
        "curve": recorder.curve,
        "operators": [asdict(operator) for operator in result.operators],
        "trial_times": recorder.trials,
    }


def reached(curve: list[tuple[float, float]], latency: float) -> float | None:
    """When the sum over operators was first as low as this; None if it never was."""
    return next((at for at, value in curve if value <= latency), None)


def compare(ours: dict[str, Any], preset: dict[str, Any]) -> dict[str, Any]:
    """How much sooner, both counted from the start of their commands."""
    at, theirs = reached(ours["curve"], preset["latency"]), reached(preset["curve"], preset["latency"])
    return {
        "preset_latency": preset["latency"],
        "seconds_of_preset": theirs,
        "seconds_of_ours": at,
        "times_sooner": theirs / at if theirs is not None and at is not None else None,
    }


def against_others(artifact: Path, names: list[str], seconds: float) -> dict[str, Any]:
    """The comparison; a runtime that cannot run the model is left out, and what it said is kept."""
    from slipstream.artifact.bench import BaselineError, bench

    failed: dict[str, str] = {}
    while True:
        try:
            return {**asdict(bench(artifact, against=names, seconds=seconds)), "failed": failed}
        except BaselineError as error:
            print(error, flush=True)
            failed[error.name] = str(error)
            names = [name for name in names if name != error.name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:resnet18")
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--preset-budget", default="5m", help="0 leaves the preset out")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--against", default="torch,torch:tf32,torch.compile")
    parser.add_argument("--then-against", default="", help="compared last: torch.compile:max-autotune takes minutes")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the final comparison")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    import_tvm_without_torch()
    report: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "seed": options.seed,
        "device": asdict(this_device()),
        "cores": available_cores(),
        "python": platform.python_version(),
    }

    def save() -> None:
        options.output.write_text(json.dumps(report) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ours"
        chosen = {"dtype": options.dtype, "seed": options.seed}
        report["ours"] = tune(options.model, out, parse_duration(options.budget), **chosen)
        save()
        print(_line("ours", report["ours"]), flush=True)
        if options.preset_budget != "0":
            seconds = parse_duration(options.preset_budget)
            report["preset"] = tune(options.model, Path(folder) / "preset", seconds, preset="metaschedule", **chosen)
            report["comparison"] = compare(report["ours"], report["preset"])
            save()
            print(_line("preset", report["preset"]), report["comparison"], flush=True)
        for key, against in (("bench", options.against), ("bench_then", options.then_against)):
            names = [name for name in against.split(",") if name]
            if names or key == "bench":
                report[key] = against_others(out, names, options.seconds)
                save()
                _print_timings(report[key]["timings"])


def _print_timings(timings: list[dict[str, Any]]) -> None:
    for timing in timings:
        low, high = (1e3 * timing[end] for end in ("low", "high"))
        print(f"{timing['name']}: {1e3 * timing['median']:.3f} ms ({low:.3f} to {high:.3f})", flush=True)


def _line(name: str, run: dict[str, Any]) -> str:
    return (
        f"{name}: {run['trials']} trials, {run['trials_per_second']:.2f}/s, sum of operators "
        f"{1e3 * run['start_latency']:.3f} -> {1e3 * run['latency']:.3f} ms, "
        f"whole model {1e3 * run['end_to_end']:.3f} ms, "
        f"{run['wall_seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
