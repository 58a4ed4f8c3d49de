"""What a store is worth: a model tuned after another one, against the same model tuned from nothing.

    python -m benchmarks.warm_start [--first resnet18] [--model resnet50] [--first-budget 2m] [--budget 3m]
    python -m benchmarks.warm_start --table     # the table again, from the raw results alone

The first model fills a store; the second is tuned with an empty one (cold) and with a copy of that one (warm), same
budget, each in a process of its own. Compared is the sum of operators by wall clock from the start of the command.
If `benchmarks.speedup` has tuned the second model with the preset in --preset, its time is set beside ours.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.ablation import at, time_to
from benchmarks.machine import describe_machine

RESULTS = Path(__file__).parent / "results"


def markdown(raw: Mapping[str, Any]) -> str:
    """The table, from raw results alone."""
    lines = ["# Warm start", ""]
    for name, result in raw["pairs"].items():
        cold, warm, preset = result["cold"], result["warm"], result.get("preset")
        goals = {"cold's after 1 minute": at(cold, 60), "cold's at its end": at(cold, math.inf)}
        if preset:
            goals["the preset's at its end"] = at(preset, math.inf)
        lines += [f"## {name}", "", "| sum of operators | ms | cold is there after, s | warm, s | preset, s |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        for goal, latency in goals.items():
            there = [f"{time_to(run, latency):.0f}" for run in (cold, warm)]
            there.append(f"{time_to(preset, latency):.0f}" if preset else "")
            lines.append(f"| {goal} | {latency * 1e3:.2f} | {' | '.join(there)} |")
        lines += [f"| warm's at its end | {at(warm, math.inf) * 1e3:.2f} | | {warm['curve'][-1][0]:.0f} | |", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", default="resnet18")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--first-budget", default="2m")
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--preset", type=Path, help="a session of the second model with the metaschedule preset")
    parser.add_argument("--work", type=Path, default=Path("build/warm_start"))
    parser.add_argument("--output", type=Path, default=RESULTS / "warm_start.json")
    parser.add_argument("--table", action="store_true", help="only make the table from the raw results")
    options = parser.parse_args()
    raw: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {"pairs": {}}
    if not options.table:
        from benchmarks.ended_session import EndedSession, tune_apart

        load, work = os.getloadavg(), options.work / f"{options.model}-after-{options.first}"
        first = tune_apart(f"zoo:{options.first}", work / "first", budget=options.first_budget)
        cold = tune_apart(f"zoo:{options.model}", work / "cold", budget=options.budget)
        store = work / "store.db"
        if not store.exists():
            shutil.copy(work / "first" / "store.db", store)
        warm = tune_apart(f"zoo:{options.model}", work / "warm", budget=options.budget, store=str(store))
        result = {"first": first.to_json(), "cold": cold.to_json(), "warm": warm.to_json()}
        if options.preset:
            result["preset"] = EndedSession(options.preset).to_json()
        about = {**describe_machine(), "load": [load, os.getloadavg()]}
        raw["pairs"][f"{options.model} after {options.first}"] = {**about, **result}
        options.output.write_text(json.dumps(raw, separators=(",", ":")) + "\n")
    options.output.with_suffix(".md").write_text(markdown(raw))
    print(markdown(raw), end="")


if __name__ == "__main__":
    main()
