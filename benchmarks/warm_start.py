"""Effect of a store: a model tuned after another (warm), with an empty store (cold), and by the preset (40 minutes).

The first model fills a store. The second is tuned with an empty one (cold) and with a copy of that one (warm), a
session for every budget, and by MetaSchedule's algorithm with so many trials for every operator, each in a process of
its own. A session that exists is not run again. Then all compiled models and ONNX Runtime run in turns.
Time counts from the start of the command to the verified model.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.runner import run
from benchmarks.spread import AS_FAST, by_process, table, with_range

QUICK = {
    "first": "tiny_cnn",
    "model": "tiny_cnn",
    "first_budget": "15s",
    "budgets": ["15s"],
    "trials": 0,
    "rounds": 3,
    "processes": 1,
}


def markdown(data: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for name, result in data.items():
        sessions, blocks = result["sessions"], result["blocks"]
        goal = "preset" if "preset" in sessions else next(iter(sessions))
        lines += ["", f"{name}, with {goal} for 1:", ""]
        rows = []
        for side, session in sessions.items():
            to = [with_range(by_process(blocks[side], blocks[other])) for other in (goal, "onnxruntime")]
            end = f"{1e3 * session['curve'][-1][1]:.2f}" if session["curve"] else "not all measured"
            shorter = f"{sessions[goal]['seconds'] / session['seconds']:.1f}"
            rows.append([side, session["trials"], f"{session['seconds']:.0f}", shorter, end, *to])
        columns = ["session", "trials", "s", "times shorter", "sum of operators, ms", "model's latency"]
        lines += table([*columns, "to ONNX Runtime's"], rows)
    return "\n".join(lines) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    """How much sooner than the preset's end the shortest warm and cold sessions are as fast as that."""
    found = {}
    for name, result in data.items():
        sessions, blocks = result["sessions"], result["blocks"]
        for side in ("cold", "warm") if "preset" in sessions else ():
            there = [
                session["seconds"]
                for budget, session in sessions.items()
                if budget.startswith(side) and median(by_process(blocks[budget], blocks["preset"])) <= AS_FAST
            ]
            sooner = f"{sessions['preset']['seconds'] / min(there):.0f}" if there else "never"
            found[f"{name}: {side} times sooner than the preset"] = sooner
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--first", default="resnet18")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--first-budget", default="2m")
    parser.add_argument("--budgets", nargs="+", default=["30s", "1m", "2m"])
    parser.add_argument("--trials", type=int, default=64, help="for every operator, on the preset's side; 0: no preset")
    parser.add_argument("--processes", type=int, default=6, help="of each compiled model, one after the other")
    parser.add_argument("--rounds", type=int, default=12, help="in each of them")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.ended_session import tune_apart
    from benchmarks.rivals.rounds import compare_artifacts

    name, model = f"{options.model} after {options.first}", f"zoo:{options.model}"
    work = options.work / name.replace(" ", "-")
    sides = {}
    if options.trials:
        preset: dict[str, Any] = {"preset": "metaschedule", "settings": {"most_trials": options.trials}}
        sides["preset"] = tune_apart(model, work / "preset", seed=options.seed, **preset)
    tune_apart(f"zoo:{options.first}", work / "first", budget=options.first_budget, seed=options.seed)
    for budget in options.budgets:
        sides[f"cold {budget}"] = tune_apart(model, work / f"cold-{budget}", budget=budget, seed=options.seed)
        store = work / f"store-{budget}.db"
        if not store.exists():
            shutil.copy(work / "first" / "store.db", store)
        warm = {"budget": budget, "seed": options.seed, "store": str(store)}
        sides[f"warm {budget}"] = tune_apart(model, work / f"warm-{budget}", **warm)
    paths = {side: ended.directory.model for side, ended in sides.items()}
    blocks = compare_artifacts(options.model, paths, work, processes=options.processes, rounds=options.rounds)
    yield name, {"sessions": {side: ended.to_json() for side, ended in sides.items()}, "blocks": blocks}


if __name__ == "__main__":
    run(__name__)
