"""How fast models are before any tuning, against other runtimes (5 minutes).

Each model is compiled with its default programs and runs interleaved with the others in one process, same inputs and
threads, batch 1. Above 1 means Slipstream is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.runner import run
from slipstream.frontends import zoo

QUICK = {"models": ["squeezenet1_1"], "seconds": 3.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=zoo.names())
    parser.add_argument("--against", nargs="+", default=["onnxruntime", "torch"])
    parser.add_argument("--seconds", type=float, default=10.0, help="of the comparison, for each model")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    import slipstream
    from slipstream.artifact.bench import bench

    for name in options.models:
        with TemporaryDirectory(dir=options.work) as scratch:
            compiled = slipstream.compile(f"zoo:{name}", Path(scratch, "out"))
            result = bench(Path(scratch, "out"), against=options.against, seconds=options.seconds)
        yield name, {"stages": compiled.seconds, **asdict(result)}


def markdown(data: Mapping[str, Any]) -> str:
    against = [ratio["against"] for ratio in next(iter(data.values()))["ratios"]]
    lines = [f"| model | compile s | ms | {' | '.join(f'against {name}' for name in against)} |"]
    lines += ["| --- | --- | --- |" + " --- |" * len(against)]
    for name, result in data.items():
        ratios = [f"{r['median']:.2f}x ({r['low']:.2f} - {r['high']:.2f})" for r in result["ratios"]]
        latency = f"{1e3 * result['timings'][0]['median']:.2f}"
        lines.append(f"| {name} | {sum(result['stages'].values()):.1f} | {latency} | {' | '.join(ratios)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run(__name__)
