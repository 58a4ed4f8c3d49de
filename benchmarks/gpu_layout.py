"""On a GPU, images laid out as NHWC against NCHW (5 minutes, on a GPU).

The same model is tuned for the same time both ways, one after the other. Preparation without its layout pass leaves
convolutions as the model has them, which is NCHW. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import slipstream
from benchmarks.runner import run
from slipstream.machine.cuda import this_device
from slipstream.session.budget import parse_duration
from slipstream.tvm_bridge.imports import import_tvm_without_torch

QUICK = {"models": ["tiny_cnn"], "budget": "20s"}
LAYOUTS = ("NHWC", "NCHW")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=["resnet18", "mobilenet_v2"])
    parser.add_argument("--budget", default="60s", help="for each model in each layout")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    import_tvm_without_torch()
    budget, device = parse_duration(options.budget), asdict(this_device())
    for model in options.models:
        runs: dict[str, Any] = {}
        for layout in LAYOUTS:
            with TemporaryDirectory(dir=options.work) as folder:
                runs[layout] = tune(model, layout, budget, options.seed, Path(folder))
            yield model, {"device": device, "budget_seconds": budget, "runs": runs}


def tune(model: str, layout: str, budget: float, seed: int, folder: Path) -> dict[str, Any]:
    from slipstream.graph import prepare

    passes = prepare.PASSES
    if layout == "NCHW":
        prepare.PASSES = tuple(step for step in passes if step.name != "layout")
    try:
        result = slipstream.tune(f"zoo:{model}", folder / "out", target="cuda", budget=budget, seed=seed)
    finally:
        prepare.PASSES = passes
    return {
        "trials": result.trials,
        "start_latency": result.start_latency,
        "latency": result.latency,
        "end_to_end": result.end_to_end,
        "operators": [asdict(operator) for operator in result.operators],
    }


def markdown(data: Mapping[str, Any]) -> str:
    lines = ["| model | layout | s of budget | trials | sum of operators, ms | whole model, ms |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for model, result in data.items():
        for layout, one in result["runs"].items():
            before, after, whole = (f"{1e3 * one[key]:.3f}" for key in ("start_latency", "latency", "end_to_end"))
            cells = [model, layout, f"{result['budget_seconds']:g}", f"{one['trials']}", f"{before} → {after}", whole]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run(__name__)
