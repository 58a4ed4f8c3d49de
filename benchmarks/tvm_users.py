"""TVM's `tune_relax` against Slipstream's in the same script (an hour a model; with --trials 8, half an hour).

TVM's importer, its pipeline (NCHW, weights prepacked), its build and its virtual machine on all sides: TVM's
`tune_relax` with its own search, scheduler, cost model, builder and runner, for so many trials of every task;
`slipstream.tvm.tune_relax` in its place; and this between Slipstream's passes, `Prepare` and `Tuned`. The stock side
has no budget in time: ours has the time it took, or less (`--budget`). `benchmarks.rivals.tvm_stock` is the script.
Then all models and ONNX Runtime run in turns, each in a process of its own. Time counts from the
start of the script to the compiled model. A tuning that is in the work folder is not done again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.latency import ratios
from benchmarks.rivals.sides import TUNED_BY_TVM
from benchmarks.runner import run
from benchmarks.spread import table, with_quartiles
from benchmarks.tune_relax import tune_stock

STOCK, LINE, PASS = TUNED_BY_TVM
_OTHERS = ("onnxruntime",)
_WORDS = {STOCK: "TVM's `tune_relax`", LINE: "`slipstream.tvm.tune_relax`", PASS: "and `Prepare`, `Tuned`"}
QUICK = {"models": ["tiny_cnn"], "trials": 2, "all_trials": 2, "budget": 10, "processes": 1, "rounds": 3}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=["resnet18", "transformer_encoder"])
    parser.add_argument("--trials", type=int, default=64, help="of every task, on the stock side; 64 is what TVM does")
    parser.add_argument("--all-trials", type=int, default=1_000_000, help="of all tasks together, on the stock side")
    parser.add_argument("--budget", type=float, help="ours, in seconds; the stock side's time if not given")
    parser.add_argument("--processes", type=int, default=3, help="of each side, one after the other")
    parser.add_argument("--rounds", type=int, default=10, help="in each of them")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.rivals.models import model_files
    from benchmarks.rivals.rounds import compare
    from slipstream.machine.target import available_cores

    threads = available_cores()
    for model in options.models:
        folder = options.work / model
        files = model_files(model, folder / "files")
        # One round for every task, unless the limit of all trials is reached before.
        limits: dict[str, Any] = {"max_trials_per_task": options.trials, "num_trials_per_iter": options.trials}
        limits["max_trials_global"] = options.all_trials
        path = Path(files["model"])
        tuned = {STOCK: tune_stock(path, folder / f"stock-{options.trials}", limits, threads)}
        budget = {"budget": options.budget or tuned[STOCK]["seconds"]}
        tuned[LINE] = tune_stock(path, folder / "line", budget, threads)
        tuned[PASS] = tune_stock(path, folder / "pass", {**budget, "prepare": True}, threads)
        artifacts = {side: one.pop("library") for side, one in tuned.items()}
        sides = (*tuned, *_OTHERS)
        jobs = {
            side: {**files, "threads": threads, "work": str(folder / side.replace(" ", "-")), "artifacts": artifacts}
            for side in sides
        }
        found = compare(sides, jobs, processes=options.processes, rounds=options.rounds, seed=options.seed)
        yield model, {"tuned": tuned, "sides": found}


def markdown(data: Mapping[str, Any]) -> str:
    rows = []
    for model, result in data.items():
        for side, words in _WORDS.items():
            tuned = result["tuned"][side]
            cells = [f"{tuned['trials']}", f"{tuned['seconds']:.0f}"]
            rows.append([model, words, *cells, *(_ratio(result["sides"], other, side) for other in (STOCK, *_OTHERS))])
    columns = ["model", "tuned by", "trials", "s", "to TVM's `tune_relax`", "to ONNX Runtime"]
    return "\n".join([*table(columns, rows), "", "Medians and quartiles over rounds; above 1 means faster.", ""])


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for model, result in data.items():
        for side in TUNED_BY_TVM:
            found[f"{model} {side} s"] = f"{result['tuned'][side]['seconds']:.0f}"
        for side in (LINE, PASS):
            found[f"{model} {side}"] = _ratio(result["sides"], STOCK, side).partition(" ")[0]
    return found


def _ratio(sides: Mapping[str, Any], other: str, side: str) -> str:
    """How many times as fast as `other` a side is; why there is no ratio."""
    if failed := sides[side].get("failed") or sides[other].get("failed"):
        return str(failed)
    return "1" if side == other else with_quartiles(ratios(sides, other, side), 2)


if __name__ == "__main__":
    run(__name__)
