"""On a GPU, images laid out as NHWC against NCHW: the same model tuned for the same time both ways.

    python -m benchmarks.gpu_layout --models resnet18,mobilenet_v2 --budget 60s -o gpu_layout.json

Preparation without its layout pass leaves convolutions as the model has them, which is NCHW. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import slipstream
from slipstream.cli.tvm_import import import_tvm_without_torch
from slipstream.cuda_device import this_device
from slipstream.session.budget import parse_duration


def tune(model: str, layout: str, budget: float) -> dict[str, Any]:
    from slipstream.graph import prepare

    passes = prepare.PASSES
    if layout == "NCHW":
        prepare.PASSES = tuple(step for step in passes if step.name != "layout")
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = slipstream.tune(f"zoo:{model}", Path(folder) / "out", target="cuda", budget=budget)
    finally:
        prepare.PASSES = passes
    return {
        "model": model,
        "layout": layout,
        "budget_seconds": budget,
        "trials": result.trials,
        "start_latency": result.start_latency,
        "latency": result.latency,
        "end_to_end": result.end_to_end,
        "operators": [asdict(operator) for operator in result.operators],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet18,mobilenet_v2")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    import_tvm_without_torch()
    runs = []
    for model in options.models.split(","):
        for layout in ("NHWC", "NCHW"):
            run = tune(model, layout, parse_duration(options.budget))
            runs.append(run)
            options.output.write_text(json.dumps({"device": asdict(this_device()), "runs": runs}) + "\n")
            print(
                f"{model} {layout}: {run['trials']} trials, sum of operators {1e3 * run['start_latency']:.3f} -> "
                f"{1e3 * run['latency']:.3f} ms, whole model {1e3 * run['end_to_end']:.3f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
