"""How much sooner than MetaSchedule's algorithm: time until our compiled model is as fast as its final one.

    python -m benchmarks.speedup [--models resnet18,...] [--seeds 1] [--trials 64] [--budget 5m] [--work build/speedup]
    python -m benchmarks.speedup --table     # the table again, from the raw results alone

Both sides tune the same prepared model on the same measurer, one after the other, each in a process of its own:
  preset  `--preset metaschedule` with so many trials for every operator, to its end (seed 0),
  ours    `slipstream tune` at its defaults, for the budget, once for each seed.
Both measure our default programs first and may keep them. Then the model is compiled with what each side knew at some
times up to ten minutes and at its end, with the default programs alone, and with the best of the programs that the
preset's search itself found. These artifacts and ONNX Runtime run interleaved. Time counts from the start of the
command to the verified artifact: import, preparation, search, training, settling, compiling. A session that exists is
not run again; an interrupted one goes on. Takes half an hour a model.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from slipstream.cli.tvm_import import import_tvm_without_torch

import_tvm_without_torch()

from benchmarks.ended_session import EndedSession, tune_apart  # noqa: E402
from slipstream.artifact.baselines import baseline  # noqa: E402
from slipstream.artifact.bench import interleave  # noqa: E402
from slipstream.artifact.compile import write_artifact  # noqa: E402
from slipstream.artifact.loaded import load  # noqa: E402
from slipstream.frontends import load_model  # noqa: E402
from slipstream.frontends.inputs import random_inputs  # noqa: E402
from slipstream.graph.prepare import prepare  # noqa: E402
from slipstream.session.winners import schedule_with  # noqa: E402
from slipstream.store import TrialRecord  # noqa: E402
from slipstream.target import Target, resolve_target  # noqa: E402

RESULTS = Path(__file__).parent / "results"
MODELS = ("resnet18", "squeezenet1_1", "mobilenet_v2", "transformer_encoder")
OUR_MINUTES = (0.25, 0.5, 1, 2, 3, 5, 10)
PRESET_MINUTES = (1, 3, 10)
_SAME = 1.01  # as fast as: within one per cent


def compile_stages(
    model: Any, prepared: Any, target: Target, sides: Mapping[str, EndedSession], work: Path
) -> dict[str, Any]:
    """Artifacts of what each side knew at each time; name -> where, and after how many seconds it would be there."""
    stages: dict[str, Any] = {}

    def write(name: str, seconds: float, best: Mapping[str, TrialRecord], side: EndedSession) -> None:
        path = work / "stages" / name.replace(" ", "-")
        programs = {key: side.program(trial) for key, trial in best.items()}
        shutil.rmtree(path, ignore_errors=True)
        write_artifact(
            model, lambda: prepared, target, path, program=schedule_with(programs, target), threads=target.threads
        )
        stages[name] = {"path": path, "seconds": seconds, "trials": len(best)}

    preset = sides["preset"]
    write("untuned", 0.0, {}, preset)
    write("preset own", preset.seconds, preset.best(defaults=False), preset)
    for name, side in sides.items():
        for seconds in (60.0 * minutes for minutes in (PRESET_MINUTES if side is preset else OUR_MINUTES)):
            if seconds < max(side.ended.values()):
                write(f"{name} {seconds / 60:g} min", seconds + side.finishing, side.best(seconds), side)
        stages[f"{name} end"] = {"path": side.directory.model, "seconds": side.seconds}
    return stages


def compare(model: str, sides: Mapping[str, EndedSession], work: Path, seconds: float) -> dict[str, Any]:
    target = resolve_target("cpu")
    loaded = load_model(f"zoo:{model}")
    prepared = prepare(loaded.module, target)[0]
    stages = compile_stages(loaded, prepared, target, sides, work)
    compiled = {name: load(stage["path"], threads=target.threads) for name, stage in stages.items()}
    feed = random_inputs(loaded.inputs, np.random.default_rng(0))
    runs: dict[str, Any] = {name: (lambda artifact=artifact: artifact(feed)) for name, artifact in compiled.items()}
    manifest = next(iter(compiled.values())).manifest
    runs["onnxruntime"] = baseline("onnxruntime", manifest, f"zoo:{model}", feed, target.threads)
    blocks = interleave(runs, seconds, np.random.default_rng(0))
    rows = {
        name: {
            "seconds": stages.get(name, {}).get("seconds"),
            "latency": float(np.median(np.concatenate(samples))),
            "blocks": [float(np.median(block)) for block in samples],
        }
        for name, samples in blocks.items()
    }
    return {
        "stages": rows,
        "sides": {name: side.to_json() for name, side in sides.items()},
    }


def reached(result: Mapping[str, Any], side: str) -> float:
    """Seconds after which `side` had an artifact as fast as the preset's final one; infinite if it never had."""
    goal = _SAME * result["stages"]["preset end"]["latency"]
    rows = (row for name, row in result["stages"].items() if name.startswith(side) and row["latency"] <= goal)
    return min((row["seconds"] for row in rows), default=math.inf)


def speedups(result: Mapping[str, Any]) -> list[float]:
    """How many times sooner than the preset, for each of our seeds."""
    preset = result["stages"]["preset end"]["seconds"]
    return [preset / reached(result, side) for side in result["sides"] if side != "preset"]


def markdown(raw: Mapping[str, Any]) -> str:
    """The tables, from raw results alone."""
    lines = ["# Time to the preset's latency", ""]
    lines += ["| model | preset ends after, s | ours is as fast after, s | times sooner |", "| --- | --- | --- | --- |"]
    for model, result in raw["models"].items():
        ours = ", ".join(f"{reached(result, side):.0f}" for side in result["sides"] if side != "preset")
        times = ", ".join(f"{x:.1f}" for x in speedups(result))
        lines.append(f"| {model} | {result['stages']['preset end']['seconds']:.0f} | {ours} | {times} |")
    means = [float(np.median(speedups(result))) for result in raw["models"].values()]
    if all(mean > 0 for mean in means):
        lines.append(f"| geometric mean | | | {geometric_mean(means):.1f} |")
    for model, result in raw["models"].items():
        onnxruntime = result["stages"]["onnxruntime"]["latency"]
        lines += ["", f"## {model}", ""]
        lines += [
            "| artifact | there after, s | ms (10th - 90th percentile of blocks) | times as fast as ONNX Runtime |"
        ]
        lines += ["| --- | --- | --- | --- |"]
        for name, row in result["stages"].items():
            low, high = np.quantile(row["blocks"], [0.1, 0.9]) * 1e3
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
            latency = f"{row['latency'] * 1e3:.2f} ({low:.2f} - {high:.2f})"
            lines.append(f"| {name} | {seconds} | {latency} | {onnxruntime / row['latency']:.2f} |")
        lines += ["", "| share of wall clock, % | " + " | ".join(result["sides"]) + " |"]
        lines += ["| --- |" + " --- |" * len(result["sides"])]
        for part in ("search", "build", "run", "train", "schedule", "store", "compile"):
            shares = [100 * side["split"].get(part, 0.0) / side["seconds"] for side in result["sides"].values()]
            lines.append(f"| {part} | " + " | ".join(f"{share:.1f}" for share in shares) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", type=int, default=1, help="of ours; the preset runs once")
    parser.add_argument("--trials", type=int, default=64, help="for every operator, on the preset's side")
    parser.add_argument("--budget", default="5m", help="ours")
    parser.add_argument("--seconds", type=float, default=60.0, help="for running the artifacts")
    parser.add_argument("--work", type=Path, default=Path("build/speedup"))
    parser.add_argument("--output", type=Path, default=RESULTS / "speedup.json")
    parser.add_argument("--table", action="store_true", help="only make the table from the raw results")
    options = parser.parse_args()
    raw: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {"models": {}}
    for model in () if options.table else options.models.split(","):
        work, load_before = options.work / model, os.getloadavg()
        preset: dict[str, Any] = {"preset": "metaschedule", "settings": {"most_trials": options.trials}}
        sides = {"preset": tune_apart(f"zoo:{model}", work / "preset", seed=0, **preset)}
        for seed in range(options.seeds):
            ours = f"ours-{seed}"
            sides[ours] = tune_apart(f"zoo:{model}", work / ours, seed=seed, budget=options.budget)
        result = compare(model, sides, work, options.seconds)
        raw["models"][model] = {**describe_machine(), "load": [load_before, os.getloadavg()], **result}
        options.output.write_text(json.dumps(raw, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(markdown(raw))
    print(markdown(raw), end="")


if __name__ == "__main__":
    main()
