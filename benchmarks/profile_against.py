"""Operators of a compiled model that are slower than ONNX Runtime's (half a minute a model).

Both run on the same inputs and threads, in turns. Our side runs in TVM's virtual machine, which reports the start and
end of each compiled function, ONNX Runtime writes its own profile. Operators are matched by computation
(`benchmarks.rivals.computation`). Profiling takes time, so the table also has each model's latency without it.
`--sessions build/latency` takes the models that `benchmarks.latency` tuned; otherwise they are compiled untuned.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import run
from benchmarks.spread import table

OURS, THEIRS = "ours", "onnxruntime"
QUICK = {"models": ["squeezenet1_1"], "seconds": 6.0}
_RUNS_A_TURN = 5
_PAUSE_SECONDS = 0.02  # worker threads of the other side may still be spinning
_MOST_ROWS = 12
_PREPACKED = "_prepacked"  # what TVM adds to the name of a function whose weights it has stored anew

Row = tuple[str, int, int, float, float]
"""What is computed, calls of ours and theirs, seconds of ours and theirs in one run of the model."""


def arguments(parser: argparse.ArgumentParser) -> None:
    models = ["squeezenet1_1", "mobilenet_v2", "resnet18", "transformer_encoder"]
    parser.add_argument("--models", nargs="+", default=models)
    parser.add_argument("--sessions", type=Path, help="take FOLDER/MODEL/tuned instead of compiling")
    parser.add_argument("--seconds", type=float, default=16.0, help="for each model")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    import slipstream
    from benchmarks.ended_session import EndedSession

    for model in options.models:
        artifact = options.sessions / model / "tuned" if options.sessions else options.work / model
        if not artifact.exists():
            slipstream.compile(f"zoo:{model}", artifact)
        winners = EndedSession(artifact).winners if options.sessions else {}
        yield model, {"tuned": bool(options.sessions), **profile(f"zoo:{model}", artifact, winners, options)}


def profile(model: str, artifact: Path, winners: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Both sides' latency and the typical time of each of their operators, in the order of the calls.

    `winners` are the programs of the operators in `artifact`; those that have none run their default program.
    """
    from benchmarks.rivals.computation import onnxruntime_computation, slipstream_computation
    from benchmarks.rivals.profiles import OnnxRuntimeProfile, OurProfile
    from slipstream.artifact.bench import BACK_TO_BACK, bench
    from slipstream.frontends import load_model, random_inputs
    from slipstream.graph.build import apply_programs
    from slipstream.graph.describe.names import describe
    from slipstream.graph.prepare import prepare
    from slipstream.graph.relax_walk import prim_funcs
    from slipstream.machine.target import resolve_target
    from slipstream.program.scheduled import schedule_with

    target, loaded = resolve_target("cpu"), load_model(model)
    prepared, _ = prepare(loaded.module, target)
    names = {str(g.name_hint): describe(func) for g, func in prim_funcs(prepared).items()}
    rng = np.random.default_rng(options.seed)
    feeds = random_inputs(loaded.inputs, rng)
    (whole,) = bench(artifact, against=[THEIRS], seconds=options.seconds / 2, patterns=[BACK_TO_BACK]).parts
    scheduled = apply_programs(prepared, target, schedule_with(winners, target))
    ours = OurProfile(scheduled, target, loaded.inputs, feeds)
    theirs = OnnxRuntimeProfile(loaded.reference.path, feeds, target.threads, options.work)
    mine = run_alternately(ours.run, theirs.run, options.seconds / 2)
    other = [run for number, run in enumerate(theirs.end()) if number % (_RUNS_A_TURN + 1)]
    seconds = typical([[taken for _, taken in run] for run in mine])
    calls = [(names[name.removesuffix(_PREPACKED)], taken) for (name, _), taken in zip(mine[0], seconds, strict=True)]
    kernels = zip(other[0], typical([[event["dur"] / 1e6 for event in run] for run in other]), strict=True)
    return {
        "latency": {side: timing.median for side, timing in zip((OURS, THEIRS), whole.timings, strict=True)},
        OURS: [[named[0], *slipstream_computation(*named), taken] for named, taken in calls],
        THEIRS: [
            [event["name"].removesuffix("_kernel_time"), *onnxruntime_computation(event), taken]
            for event, taken in kernels
        ],
    }


def run_alternately(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> list[Any]:
    """The results of our runs, without the first of each turn, which finds the caches filled by the other side."""
    runs: list[Any] = []
    began = time.perf_counter()
    while not runs or time.perf_counter() - began < seconds:
        time.sleep(_PAUSE_SECONDS)
        runs += [ours() for _ in range(_RUNS_A_TURN + 1)][1:]
        time.sleep(_PAUSE_SECONDS)
        for _ in range(_RUNS_A_TURN + 1):
            theirs()
    return runs


def typical(runs: list[list[float]]) -> list[float]:
    """Each call's mean over runs without the fastest and slowest tenth; a clock of whole microseconds needs a mean."""
    ordered = np.sort(np.array(runs), axis=0)
    cut = len(ordered) // 10
    return [float(value) for value in ordered[cut : len(ordered) - cut].mean(axis=0)]


def by_kind(result: Mapping[str, Any]) -> list[Row]:
    """All operators by kind, the largest loss against ONNX Runtime first."""
    return _grouped(result, lambda kind, what: kind)


def by_work(result: Mapping[str, Any]) -> list[Row]:
    """Those operators by what they compute that both sides have as such."""
    rows = _grouped(result, lambda kind, what: f"{kind}: {what}" if what else "")
    return [row for row in rows if row[0] and row[1] and row[2]]


def _grouped(result: Mapping[str, Any], key_of: Callable[[str, str], str]) -> list[Row]:
    calls: dict[str, dict[str, int]] = {}
    seconds: dict[str, dict[str, float]] = {}
    for side in (OURS, THEIRS):
        for _, kind, what, taken in result[side]:
            key = key_of(kind, what)
            calls.setdefault(key, {OURS: 0, THEIRS: 0})[side] += 1
            seconds.setdefault(key, {OURS: 0.0, THEIRS: 0.0})[side] += taken
    rows = [(key, n[OURS], n[THEIRS], seconds[key][OURS], seconds[key][THEIRS]) for key, n in calls.items()]
    return sorted(rows, key=lambda row: row[4] - row[3])


def markdown(data: Mapping[str, Any]) -> str:
    columns = ["model", "", "ms", "ONNX Runtime's", "slower in", "µs", "ONNX Runtime's", "faster in", "µs"]
    rows = []
    for name, result in data.items():
        lost, won = by_kind(result)[0], by_kind(result)[-1]
        latencies = [f"{1e3 * result['latency'][side]:.2f}" for side in (OURS, THEIRS)]
        both = [*_side_by_side(lost, lost[3] > lost[4]), *_side_by_side(won, won[3] < won[4])]
        rows.append([name, "tuned" if result["tuned"] else "untuned", *latencies, *both])
    lines = table([*columns, "ONNX Runtime's"], rows)
    for name, result in data.items():
        sums = [1e3 * sum(row[3] for row in result[side]) for side in (OURS, THEIRS)]
        lines += ["", f"### {name}", "", f"Sum of the operators {sums[0]:.2f} ms, ONNX Runtime's {sums[1]:.2f} ms.", ""]
        lines += [*_table("kind", by_kind(result)), ""]
        lines += _table("the same work on both sides, largest loss first", by_work(result)[:_MOST_ROWS])
    return "\n".join(lines) + "\n"


def _side_by_side(row: Row, wanted: bool) -> list[str]:
    return [row[0], f"{1e6 * row[3]:.0f}", f"{1e6 * row[4]:.0f}"] if wanted else ["nothing", "", ""]


def _table(title: str, rows: list[Row]) -> list[str]:
    columns = [title, "calls", "ONNX Runtime's", "µs", "ONNX Runtime's µs", "lost µs"]
    return table(
        columns,
        [
            [key, mine, other, f"{1e6 * ours:.0f}", f"{1e6 * theirs:.0f}", f"{1e6 * (ours - theirs):+.0f}"]
            for key, mine, other, ours, theirs in rows
        ],
    )


if __name__ == "__main__":
    run(__name__)
