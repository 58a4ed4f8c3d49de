"""Tuning on an NVIDIA GPU, beside MetaSchedule's algorithm and PyTorch (8 minutes a model, on a GPU).

One run is one model: ours for the budget, then the preset `metaschedule` for its own, on the same device with the same
measurer, then the tuned model against PyTorch. Shown are trials a second, how soon the preset's latency is reached, and
the result. A run stays until one of the same name is made. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import slipstream
from benchmarks.detector import write_detector
from benchmarks.gpu_kernels import kernels_in_child
from benchmarks.gpu_table import markdown, numbers, short_name
from benchmarks.runner import run
from slipstream.machine.cuda import this_device
from slipstream.machine.target import DTYPES, available_cores
from slipstream.session.budget import parse_duration
from slipstream.session.events import Event, Snapshot
from slipstream.tvm_bridge.imports import import_tvm_without_torch

__all__ = ["arguments", "markdown", "measure", "numbers"]

QUICK = {"model": "zoo:tiny_cnn", "budget": "20s", "preset_budget": "0", "against": "torch", "seconds": 1.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="zoo:resnet18", help="of the zoo, a file, or `detector`")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--batch", type=int, default=1, help="of models whose inputs leave it open")
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--name", help="of the run [made of model, type, budget and seed]")
    parser.add_argument("--preset-budget", default="5m", help="0 leaves the preset out")
    parser.add_argument("--against", default="torch,torch:tf32,torch.compile")
    parser.add_argument("--then-against", default="", help="compared last: torch.compile:max-autotune takes minutes")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the final comparison")
    parser.add_argument("--no-kernels", action="store_true", help="do not count kernels, which takes half a minute")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """The run after each of its steps, so that one that is cut off leaves what it had."""
    import_tvm_without_torch()
    budget = parse_duration(options.budget)
    name = options.name or name_of(options.model, options.dtype, budget, options.seed, options.batch)
    report: dict[str, Any] = {
        "model": options.model if options.batch == 1 else f"{options.model} batch {options.batch}",
        "dtype": options.dtype,
        "seed": options.seed,
        "device": asdict(this_device()),
        "cores": available_cores(),
    }
    with TemporaryDirectory(dir=options.work) as folder:
        out = Path(folder) / "ours"
        model = str(write_detector(options.work / "detector.onnx")) if options.model == "detector" else options.model
        chosen = {"dtype": options.dtype, "seed": options.seed, "shapes": shapes_of(model, options.batch)}
        report["ours"] = tune(model, out, budget, **chosen)
        yield name, report
        if options.preset_budget != "0":
            seconds = parse_duration(options.preset_budget)
            report["preset"] = tune(model, Path(folder) / "preset", seconds, preset="metaschedule", **chosen)
            yield name, report
        report["bench"] = against_others(out, _names(options.against), options.seconds)
        yield name, report
        if not options.no_kernels:
            counted = [timing["name"] for timing in report["bench"]["timings"]]
            report["kernels"] = {side: kernels_in_child(out, side) for side in counted}
            yield name, report
        if options.then_against:
            report["bench_then"] = against_others(out, _names(options.then_against), options.seconds)
            yield name, report


def _names(against: str) -> list[str]:
    return [name for name in against.split(",") if name]


def name_of(model: str, dtype: str, budget: float, seed: int, batch: int = 1) -> str:
    """Of a run: those with the first seed, or one input at a time, do not name it."""
    whole = short_name(model) + (f" batch {batch}" if batch > 1 else "")
    return f"{whole} {dtype} {budget:g}s" + (f" seed {seed}" if seed else "")


def shapes_of(model: str, batch: int) -> dict[str, list[int]]:
    """The shapes of the model's inputs, whose first extent is the batch; none if that is 1."""
    if batch == 1:
        return {}
    import onnx

    from slipstream.frontends import zoo

    proto = zoo.build(model.removeprefix("zoo:")) if model.startswith("zoo:") else onnx.load(model)
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    extents = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inputs}
    return {name: [batch, *rest] for name, (_, *rest) in extents.items()}


class Recorder:
    """Notes when phases begin, when trials end and when the model gets faster."""

    def __init__(self) -> None:
        self.begins: dict[str, float] = {}
        self.trials: list[float] = []
        self.curve: list[tuple[float, float]] = []

    def __call__(self, event: Event, snapshot: Snapshot) -> None:
        at = round(event.elapsed, 3)
        if event.kind == "phase":
            self.begins.setdefault(snapshot.phase, at)
        elif event.kind == "trial":
            self.trials.append(at)
        elif event.kind == "improved":
            self.curve.append((at, snapshot.latency))

    def rate(self) -> float:
        """Trials a second of tuning, search included."""
        start, end = self.begins["tune"], self.begins.get("settle", self.trials[-1])
        return sum(start < at <= end for at in self.trials) / (end - start)


def tune(model: str, folder: Path, budget: float, **options: Any) -> dict[str, Any]:
    recorder = Recorder()
    began = time.monotonic()
    result = slipstream.tune(model, folder, target="cuda", budget=budget, priors=None, callbacks=[recorder], **options)
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
        "curve": recorder.curve,
        "operators": [asdict(operator) for operator in result.operators],
    }


def against_others(artifact: Path, names: list[str], seconds: float) -> dict[str, Any]:
    """The comparison; a runtime that cannot run the model is left out, and its error message recorded."""
    from slipstream.artifact.bench import BACK_TO_BACK, BaselineError, bench

    failed: dict[str, str] = {}
    while True:
        try:
            result = bench(artifact, against=names, seconds=seconds, patterns=[BACK_TO_BACK])
            about = {"model": result.model, "threads": result.threads, "device": result.device}
            return {**about, **asdict(result.parts[0]), "failed": failed}
        except BaselineError as error:
            print(error, flush=True)
            failed[error.name] = str(error)
            names = [name for name in names if name != error.name]


if __name__ == "__main__":
    run(__name__)
