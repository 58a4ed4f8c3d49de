"""The tables and figures of this folder that docs/ quote, from the committed files alone."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean

RESULTS = Path(__file__).parents[1] / "results"
# Replays of curves recorded on a CPU and on a GPU -> the folder of their `summary`.
_SUMMARIES = {"dynatune": RESULTS, "gpu_dynatune": RESULTS / "gpu_dynatune"}
NAMES = tuple(_SUMMARIES)


def page(name: str) -> str:
    """The tables of that name."""
    return (_SUMMARIES[name] / "dynatune.md").read_text().partition("\n")[2]


def numbers(name: str) -> dict[str, str]:
    """Figures that prose may quote."""
    data = json.loads((_SUMMARIES[name] / "dynatune.json").read_text())
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
