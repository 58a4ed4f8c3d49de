"""The tables and figures of this folder that docs/ quote, from the committed files alone."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
# Replays of curves recorded on a CPU and on a GPU -> the folder of their `summary`.
_SUMMARIES = {"dynatune": RESULTS, "gpu_dynatune": RESULTS / "gpu_dynatune"}
NAMES = (*_SUMMARIES, "predictors")


def page(name: str) -> str:
    """The tables of that name."""
    if name == "predictors":
        with (HERE / "figures" / "predictors.csv").open() as file:
            return _predictors(list(csv.DictReader(file)))
    return (_SUMMARIES[name] / "dynatune.md").read_text().partition("\n")[2]


def numbers(name: str) -> dict[str, str]:
    """Figures that prose may quote: a summary's. The others have none."""
    return _numbers(json.loads((_SUMMARIES[name] / "dynatune.json").read_text())) if name in _SUMMARIES else {}


def _numbers(data: Mapping[str, Any]) -> dict[str, str]:
    found = {"inside 90 %": f"{100 * data['calibration']:.0f}", "forecasts": f"{data['forecasts']:,}"}
    for share, by_policy in data["times_faster"].items():
        for ours, others in by_policy.items():
            found |= {f"{ours} against {other}, {share}": f"{times:.2f}" for other, times in others.items()}
        found[f"times the oracle's time, {share}"] = f"{1 / by_policy['dynatune']['oracle']:.2f}"
    near = data["times_the_oracle"]  # none where each model was recorded once
    for policy in ("informed", "dynatune", "gradient") if near else ():
        times = {name: row[policy] for name, row in near.items()}
        found[f"{policy}: times the oracle's time"] = f"{geometric_mean(times.values()):.1f}"
        found[f"{policy}: least times the oracle's time"] = f"{min(times.values()):.1f}"
        found[f"{policy}: most times the oracle's time"] = f"{max(times.values()):.1f}"
        found |= {f"{policy}: times the oracle's time, {name}": f"{value:.1f}" for name, value in times.items()}
    return found


def _predictors(rows: Sequence[Mapping[str, str]]) -> str:
    predictors = list(dict.fromkeys(row["predictor"] for row in rows))
    lines = [f"| slots behind | {' | '.join(f'by {name}' for name in predictors)} |"]
    lines += ["| --- |" + " --- |" * len(predictors)]
    for slots in dict.fromkeys(row["slots"] for row in rows):
        thirds = [[float(r["gained"]) for r in rows if (r["predictor"], r["slots"]) == (p, slots)] for p in predictors]
        lines.append(f"| {slots} | {' | '.join(', '.join(f'{gain:.3f}' for gain in gains) for gains in thirds)} |")
    return "\n".join(lines)
