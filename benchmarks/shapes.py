"""Several shapes tuned together in 1.7 times the time of one, against a session for each shape (15 minutes).

Each shape is tuned by itself with so many trials, all of them together for 1.7 times as long as that took on average,
each session in a process of its own and from an empty store. A session that exists is not run again. Then, shape by
shape, the model that was tuned for that shape alone, the one for all shapes, and one for all shapes that was not tuned
run in turns. Time counts from the start of the command to the verified model; processor time is that of all its
processes, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

from benchmarks.race import race
from benchmarks.runner import run
from benchmarks.spread import table, with_quartiles

QUICK = {"model": "tiny_cnn", "batches": [1, 4], "trials": 20, "rounds": 10}
TOGETHER, UNTUNED = "together", "not tuned"


def markdown(data: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for name, result in data.items():
        rows = []
        for shape, blocks in result["blocks"].items():
            session = result["sessions"][shape]
            ratio = [a / b for a, b in zip(blocks[TOGETHER], blocks["alone"], strict=True)]
            latencies = [f"{1e3 * median(blocks[side]):.2f}" for side in (UNTUNED, "alone", TOGETHER)]
            size = f"{result['bytes'][shape] / 1e6:.1f}"
            rows.append([shape, *_effort(session), *latencies, with_quartiles(ratio), size])
        cells = [*_effort(result["sessions"][TOGETHER]), "", "", "", f"{_latency_ratio(result):.3f}"]
        rows.append(["all together", *cells, f"{result['bytes'][TOGETHER] / 1e6:.1f}"])
        columns = ["batch", "trials", "s", "processor s", "not tuned, ms", "alone, ms", "together, ms"]
        lines += ["", f"{name}:", "", *table([*columns, "together to alone", "MB"], rows)]
    return "\n".join(lines) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, result in data.items():
        alone = {shape: session for shape, session in result["sessions"].items() if shape != TOGETHER}
        together = result["sessions"][TOGETHER]
        ratio = {kind: together[kind] / fmean(one[kind] for one in alone.values()) for kind in ("seconds", "processor")}
        sizes = [result["bytes"][shape] for shape in alone]
        found |= {
            f"{name}: time": f"{ratio['seconds']:.2f}",
            f"{name}: processor time": f"{ratio['processor']:.2f}",
            f"{name}: latency": f"{_latency_ratio(result):.3f}",
            f"{name}: size alone": f"{sum(sizes) / 1e6:.1f}",
            f"{name}: size": f"{result['bytes'][TOGETHER] / 1e6:.1f}",
            f"{name}: size not tuned": f"{result['bytes'][UNTUNED] / 1e6:.1f}",
        }
    return found


def _effort(session: Mapping[str, Any]) -> list[object]:
    return [session["trials"], f"{session['seconds']:.0f}", f"{session['processor']:.0f}"]


def _latency_ratio(result: Mapping[str, Any]) -> float:
    """Latency of the model for all shapes to that of those for one: the geometric mean over the shapes."""
    return geometric_mean(
        median(a / b for a, b in zip(blocks[TOGETHER], blocks["alone"], strict=True))
        for blocks in result["blocks"].values()
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="squeezenet1_1")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--trials", type=int, default=300, help="of a session for one shape")
    parser.add_argument("--share", type=float, default=1.7, help="of the time of one for all shapes")
    parser.add_argument("--rounds", type=int, default=60, help="in which the compiled models run in turns")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    import slipstream
    from benchmarks.ended_session import tune_apart

    model, sizes = f"zoo:{options.model}", ",".join(map(str, options.batches))
    name, work = f"{options.model}, batch {sizes}", options.work / options.model
    input_name, extents = _input(model)
    shapes = {str(batch): f"{batch}{extents}" for batch in options.batches}
    sessions: dict[str, dict[str, Any]] = {}
    paths = {}
    for shape, text in [*shapes.items(), (TOGETHER, f"{sizes}{extents}")]:
        directory = work / f"batch-{shape}"
        before, load = _processor_seconds(), os.getloadavg()[0]
        if shape == TOGETHER:
            limit = {"budget": options.share * fmean(one["seconds"] for one in sessions.values())}
        else:
            limit = {"trials": options.trials}
        ended = tune_apart(model, directory, seed=options.seed, shapes={input_name: text}, **limit)
        about = directory / "processor.json"
        if not about.exists():
            used = {"processor": _processor_seconds() - before, "loads": [load, os.getloadavg()[0]]}
            about.write_text(json.dumps(used))
        sessions[shape] = {**ended.to_json(), **json.loads(about.read_text())}
        paths[shape] = ended.directory.model
    paths[UNTUNED] = work / "not-tuned"
    slipstream.compile(model, paths[UNTUNED], shapes={input_name: f"{sizes}{extents}"})
    blocks = {
        shape: race({"alone": paths[shape], TOGETHER: paths[TOGETHER], UNTUNED: paths[UNTUNED]}, options.rounds)
        for shape in shapes
    }
    yield name, {"sessions": sessions, "blocks": blocks, "bytes": {side: _size(path) for side, path in paths.items()}}


def _processor_seconds() -> float:
    """Of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _input(model: str) -> tuple[str, str]:
    """The name of a model's only input, and its dimensions after the batch."""
    from slipstream.frontends import zoo

    (value,) = zoo.build(model.removeprefix("zoo:")).graph.input
    return value.name, "".join(f"x{dim.dim_value}" for dim in value.type.tensor_type.shape.dim[1:])


def _size(artifact: Path) -> int:
    return sum(file.stat().st_size for file in artifact.iterdir())


if __name__ == "__main__":
    run(__name__)
