"""How much sooner than MetaSchedule's algorithm: time until our compiled model is as fast as its final one.

    python -m benchmarks.speedup [--models resnet18,...] [--seeds 1] [--trials 64] [--budget 5m] [--work build/speedup]

Both sides tune the same model on the same measurer, one after the other in turns, nothing else running:
  preset  `--preset metaschedule` with so many trials for every operator, to its end,
  ours    `slipstream tune` at its defaults, for the budget.
Then the model is compiled with what each side knew after 0.5, 1, 2, 3, 5 and 10 minutes and at its end, and these
artifacts run interleaved. Time counts from the start of the command, import, preparation, search and training
included. A session that exists is not run again; an interrupted one goes on. Takes half an hour a model and seed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.cli.tvm_import import import_tvm_without_torch

import_tvm_without_torch()

from slipstream.artifact.bench import interleave  # noqa: E402
from slipstream.artifact.compile import write_artifact  # noqa: E402
from slipstream.artifact.loaded import load  # noqa: E402
from slipstream.frontends import load_model  # noqa: E402
from slipstream.frontends.inputs import random_inputs  # noqa: E402
from slipstream.graph.prepare import prepare  # noqa: E402
from slipstream.program.decisions import from_json  # noqa: E402
from slipstream.program.sketch import Sketch  # noqa: E402
from slipstream.program.space import Program  # noqa: E402
from slipstream.session.budget import parse_duration  # noqa: E402
from slipstream.session.directory import SessionDirectory, open_store  # noqa: E402
from slipstream.session.tune import resume, tune  # noqa: E402
from slipstream.session.winners import schedule_with  # noqa: E402
from slipstream.store import Store  # noqa: E402
from slipstream.target import Target, resolve_target  # noqa: E402

_MINUTES = (0.5, 1, 2, 3, 5, 10)
_SAME = 1.01  # as fast as: within one per cent


def run_side(model: str, directory: Path, **options: Any) -> None:
    """Tune unless it has been done."""
    if (directory / "model").is_dir():
        return
    if (directory / "session.json").exists():
        resume(directory)
        return
    shutil.rmtree(directory, ignore_errors=True)
    tune(f"zoo:{model}", directory, **options)


def winners_at(store: Store, session: str, seconds: float) -> dict[str, Program]:
    """Each operator's best program among the slots that had ended after `seconds`."""
    ended = {slot.slot for slot in store.slots(session) if slot.finished and slot.stats["elapsed"] <= seconds}
    best: dict[str, tuple[float, Program]] = {}
    for trial in store.trials(session=session):
        if trial.slot in ended and trial.median < best.get(trial.operator, (math.inf, None))[0]:
            text = store.sketch(trial.program.sketch)
            assert text is not None
            program = Program(trial.operator, Sketch(text), from_json(trial.program.decisions))
            best[trial.operator] = (trial.median, program)
    return {key: program for key, (_, program) in best.items()}


def compile_stages(model: Any, prepared: Any, target: Target, directory: Path) -> dict[str, dict[str, Any]]:
    """Artifacts of what a session knew at each time; name -> where, and the seconds it stands for."""
    folder = SessionDirectory.read(directory)
    stages: dict[str, dict[str, Any]] = {}
    with open_store(folder, read_only=True) as store:
        record = store.session(folder.session)
        times = [60.0 * minutes for minutes in _MINUTES if 60.0 * minutes < record.elapsed]
        for seconds in times:
            path = directory / f"after-{seconds:.0f}s"
            winners = winners_at(store, folder.session, seconds)
            write_artifact(
                model, lambda: prepared, target, path, program=schedule_with(winners, target), threads=target.threads
            )
            stages[f"{directory.name} {seconds / 60:g} min"] = {"path": path, "seconds": seconds}
        stages[f"{directory.name} end"] = {"path": folder.model, "seconds": record.elapsed}
    return stages


def compare(model: str, work: Path, seed: int, seconds: float) -> dict[str, Any]:
    target = resolve_target("cpu")
    loaded = load_model(f"zoo:{model}")
    prepared = prepare(loaded.module, target)[0]
    stages: dict[str, dict[str, Any]] = {}
    for side in ("preset", "ours"):
        stages |= compile_stages(loaded, prepared, target, work / f"{model}-{seed}" / side)
    compiled = {name: load(stage["path"], threads=target.threads) for name, stage in stages.items()}
    feed = random_inputs(loaded.inputs, np.random.default_rng(0))
    runs = {name: (lambda artifact=artifact: artifact(feed)) for name, artifact in compiled.items()}
    blocks = interleave(runs, seconds, np.random.default_rng(seed))
    rows = {
        name: {
            "seconds": stages[name]["seconds"],
            "latency": float(np.median(np.concatenate(samples))),
            "blocks": [float(np.median(block)) for block in samples],
        }
        for name, samples in blocks.items()
    }
    goal = rows["preset end"]["latency"]
    reached = [
        row["seconds"] for name, row in rows.items() if name.startswith("ours") and row["latency"] <= _SAME * goal
    ]
    first = min(reached, default=math.inf)
    return {
        "stages": rows,
        "preset_seconds": rows["preset end"]["seconds"],
        "goal_latency": goal,
        "ours_seconds": first if math.isfinite(first) else None,
        "speedup": rows["preset end"]["seconds"] / first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet18,squeezenet1_1,mobilenet_v2,transformer_encoder")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trials", type=int, default=64, help="for every operator, on the preset's side")
    parser.add_argument("--budget", default="5m", help="ours")
    parser.add_argument("--seconds", type=float, default=60.0, help="for running the artifacts")
    parser.add_argument("--work", type=Path, default=Path("build/speedup"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/speedup.json"))
    options = parser.parse_args()
    raw: dict[str, Any] = {"machine": platform.processor(), "cores": os.cpu_count(), "models": {}}
    for model in options.models.split(","):
        for seed in range(options.seeds):
            folder = options.work / f"{model}-{seed}"
            load_before = os.getloadavg()
            preset = {"preset": "metaschedule", "settings": {"most_trials": options.trials}}
            run_side(model, folder / "preset", seed=seed, **preset)
            run_side(model, folder / "ours", seed=seed, budget=parse_duration(options.budget))
            result = compare(model, options.work, seed, options.seconds)
            result |= {"load_before": load_before, "load_after": os.getloadavg(), "date": time.strftime("%Y-%m-%d")}
            raw["models"][f"{model}-{seed}"] = result
            print(
                f"{model} seed {seed}: preset {result['preset_seconds']:.0f} s, {result['goal_latency'] * 1e3:.2f} ms"
            )
            for name, row in result["stages"].items():
                spread = np.quantile(row["blocks"], [0.1, 0.9]) * 1e3
                print(f"  {name:16} {row['latency'] * 1e3:8.3f} ms ({spread[0]:.3f} - {spread[1]:.3f})")
            print(f"  ours reaches it after {result['ours_seconds']} s: {result['speedup']:.1f} times sooner")
            options.output.write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
