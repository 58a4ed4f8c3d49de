"""TVM's own `tune_relax` end to end against `slipstream tune` (40 minutes a model; with --trials 16, 20).

The stock side imports the model with TVM's importer, runs TVM's pipeline (NCHW, weights prepacked) and `tune_relax`
with its own search, scheduler, cost model, builder and runner, for so many trials of every task; it has no budget in
time. `benchmarks.rivals.tvm_stock` describes the one change it needs to work. Ours then has
the same wall clock, or less (`--budget`). Then both models, TVM's untuned one and ONNX Runtime run in turns, each in
a process of its own. Time counts from the start of the command to the compiled model. A tuning that is in the work
folder is not done again; --sessions build/latency takes the models that `benchmarks.latency` tuned for ours.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.latency import OURS, ratios
from benchmarks.runner import run
from benchmarks.spread import table, with_quartiles

STOCK, UNTUNED = "tvm tune_relax", "tvm untuned"
_SIDES = (OURS, STOCK, UNTUNED, "onnxruntime")
QUICK = {"models": ["tiny_cnn"], "trials": 2, "all_trials": 2, "budget": "10s", "processes": 1, "rounds": 3}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=["resnet18", "squeezenet1_1"])
    parser.add_argument("--trials", type=int, default=64, help="of every task, on the stock side; 64 is what TVM does")
    parser.add_argument("--all-trials", type=int, default=1_000_000, help="of all tasks together, on the stock side")
    parser.add_argument("--budget", help="ours; the stock side's time if not given")
    parser.add_argument("--sessions", type=Path, help="take FOLDER/MODEL/tuned for ours, instead of tuning")
    parser.add_argument("--processes", type=int, default=3, help="of each side, one after the other")
    parser.add_argument("--rounds", type=int, default=10, help="in each of them")
    parser.add_argument("--stock-only", action="store_true", help="only tune the stock side")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.ended_session import EndedSession, tune_apart
    from benchmarks.rivals.models import model_files
    from benchmarks.rivals.rounds import compare
    from slipstream.machine.target import available_cores

    threads = available_cores()
    for model in options.models:
        folder = options.work / model
        files = model_files(model, folder / "files")
        # One round for every task, unless the limit of all trials is reached before.
        limits = {"max_trials_per_task": options.trials, "num_trials_per_iter": options.trials}
        limits["max_trials_global"] = options.all_trials
        stock = tune_stock(Path(files["model"]), folder / f"stock-{options.trials}", limits, threads)
        if options.stock_only:
            continue
        if options.sessions:
            ours = EndedSession(options.sessions / model / "tuned")
        else:
            budget = options.budget or stock["seconds"]
            ours = tune_apart(files["source"], folder / "ours", budget=budget, seed=options.seed)
        artifacts = {OURS: str(ours.directory.path), STOCK: stock["library"]}
        jobs = {
            side: {**files, "threads": threads, "work": str(folder / side.replace(" ", "-")), "artifacts": artifacts}
            for side in _SIDES
        }
        found = compare(_SIDES, jobs, processes=options.processes, rounds=options.rounds, seed=options.seed)
        summary = {"seconds": round(ours.seconds, 1), "trials": len(ours.trials)}
        yield model, {"stock": {**stock, "library": ""}, "ours": summary, "sides": found}


def tune_stock(model: Path, folder: Path, limits: Mapping[str, int], threads: int) -> dict[str, Any]:
    """Tune in a process of its own, unless it has been done."""
    if not (folder / "result.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        subprocess.run(
            [sys.executable, "-m", "benchmarks.rivals.tvm_stock", str(model), str(folder), json.dumps(limits)],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "TVM_NUM_THREADS": str(threads)},
        )
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return {**result, **limits, "library": str(folder / "model.so")}


def markdown(data: Mapping[str, Any]) -> str:
    rows = []
    for name, result in data.items():
        stock, ours, sides = result["stock"], result["ours"], result["sides"]
        cells = [f"{stock['tasks_tuned']} of {stock['tasks']}", stock["trials"], f"{stock['seconds']:.0f}"]
        cells += [ours["trials"], f"{ours['seconds']:.0f}"]
        cells += [f"{with_quartiles(ratios(sides, STOCK), 2)} times" if _ran(sides, STOCK) else sides[STOCK]["failed"]]
        cells += [with_quartiles(ratios(sides, "onnxruntime"), 2)]
        rows.append([name, *cells, *(_against(sides, other) for other in ("onnxruntime", UNTUNED))])
    columns = ["model", "tune_relax: tasks", "trials", "s", "ours: trials", "s", "ours is faster"]
    lines = table([*columns, "ours to ONNX Runtime", "tune_relax to ONNX Runtime", "to TVM untuned"], rows)
    return "\n".join([*lines, "", "Medians and quartiles over rounds; above 1 means faster than the other."]) + "\n"


def _ran(sides: Mapping[str, Any], side: str) -> bool:
    return "failed" not in sides[side]


def _against(sides: Mapping[str, Any], other: str) -> str:
    """How many times as fast as `other` the stock side is."""
    if not (_ran(sides, STOCK) and _ran(sides, other)):
        return ""
    return with_quartiles(ratios(sides, other, STOCK), 2)


if __name__ == "__main__":
    run(__name__)
