"""How fast models are before any tuning: compile each, then bench it against the other runtimes.

    python benchmarks/untuned.py [--models resnet18,...] [--seconds 10] [--against onnxruntime,torch]

Writes benchmarks/results/untuned.json and prints the table that docs/benchmarks.md quotes. Ratios are measured
interleaved in one process; absolute times are those of the machine it ran on.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path

import slipstream
from slipstream.artifact.bench import BenchResult, bench
from slipstream.frontends import zoo
from slipstream.hardware import cpu_model, measure_peak_flops
from slipstream.target import resolve_target

RESULTS = Path(__file__).parent / "results" / "untuned.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(zoo.names()))
    parser.add_argument("--against", default="onnxruntime,torch")
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    target = resolve_target()
    machine = {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "threads": target.threads,
        "peak_gflops": round(measure_peak_flops(target) / 1e9, 1),
    }
    rows = []
    print("| model | compile s | slipstream ms | vs onnxruntime | vs torch |\n| --- | --- | --- | --- | --- |")
    for name in arguments.models.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            compiled = slipstream.compile(f"zoo:{name}", Path(scratch, "out"))
            result = bench(Path(scratch, "out"), against=arguments.against.split(","), seconds=arguments.seconds)
        seconds = sum(compiled.seconds.values())
        rows.append({"compile_seconds": seconds, "stages": compiled.seconds, **asdict(result)})
        print(_row(result, seconds), flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"machine": machine, "models": rows}, indent=1) + "\n")


def _row(result: BenchResult, seconds: float) -> str:
    ours = result.timings[0]
    ratios = " | ".join(f"{r.median:.2f}x ({r.low:.2f} - {r.high:.2f})" for r in result.ratios)
    return f"| {result.model} | {seconds:.1f} | {ours.median * 1e3:.2f} | {ratios} |"


if __name__ == "__main__":
    main()
