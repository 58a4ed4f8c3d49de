"""What a store is worth: a model tuned after another one, against the same model tuned from nothing (7 minutes).

The first model fills a store; the second is tuned with an empty one (cold) and with a copy of that one (warm), same
budget, each in a process of its own. Compared is the sum of operators by wall clock from the start of the command.
If `benchmarks.speedup` has tuned the second model with the preset in --preset, its time is set beside ours.
"""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.ablation import at, time_to
from benchmarks.runner import run

QUICK = {"first": "tiny_cnn", "model": "tiny_cnn", "first_budget": "15s", "budget": "15s"}


def goals(result: Mapping[str, Any]) -> dict[str, float]:
    """Sums of operators that are worth reaching."""
    found = {"cold's after 1 minute": at(result["cold"], 60), "cold's at its end": at(result["cold"], math.inf)}
    if "preset" in result:
        found["the preset's at its end"] = at(result["preset"], math.inf)
    return found


def markdown(data: Mapping[str, Any]) -> str:
    lines = [
        "| sum of operators | ms | cold is there after, s | warm, s | preset, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, result in data.items():
        for goal, latency in goals(result).items():
            there = [_seconds(result.get(side), latency) for side in ("cold", "warm", "preset")]
            lines.append(f"| {name}: {goal} | {latency * 1e3:.2f} | {' | '.join(there)} |")
        warm = result["warm"]
        end, seconds = at(warm, math.inf) * 1e3, warm["curve"][-1][0]
        lines.append(f"| {name}: warm's at its end | {end:.2f} | | {seconds:.0f} | |")
    return "\n".join(lines) + "\n"


def _seconds(run: Mapping[str, Any] | None, latency: float) -> str:
    if run is None:
        return ""
    seconds = time_to(run, latency)
    return f"{seconds:.0f}" if math.isfinite(seconds) else "never"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{name}: {side} to {goal}": _seconds(result[side], latency)
        for name, result in data.items()
        for goal, latency in goals(result).items()
        for side in ("cold", "warm")
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--first", default="resnet18")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--first-budget", default="2m")
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--preset", type=Path, help="a session of the second model with the metaschedule preset")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.ended_session import EndedSession, tune_apart

    name = f"{options.model} after {options.first}"
    work = options.work / name.replace(" ", "-")
    first = tune_apart(f"zoo:{options.first}", work / "first", budget=options.first_budget, seed=options.seed)
    cold = tune_apart(f"zoo:{options.model}", work / "cold", budget=options.budget, seed=options.seed)
    store = work / "store.db"
    if not store.exists():
        shutil.copy(work / "first" / "store.db", store)
    warm = tune_apart(f"zoo:{options.model}", work / "warm", budget=options.budget, seed=options.seed, store=str(store))
    result = {"first": first.to_json(), "cold": cold.to_json(), "warm": warm.to_json()}
    if options.preset:
        result["preset"] = EndedSession(options.preset).to_json()
    yield name, result


if __name__ == "__main__":
    run(__name__)
