"""The tables and figures of this folder that docs/ quote, from the committed files alone."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.dynatune.left_out import numbers as left_out_numbers
from benchmarks.dynatune.replays import less_excess

RESULTS = Path(__file__).parents[1] / "results"
# Replays of curves recorded on a CPU and on a GPU -> the folder of their `summary`.
_SUMMARIES = {"dynatune": RESULTS, "gpu_dynatune": RESULTS / "gpu_dynatune"}
_CLAIMS, _TUNERS, _LEFT_OUT = "dynatune_claims", "dynatune_tuners", "dynatune_left_out"
# Policies that the summary's own table of speedups leaves out.
_MORE = ("random", "linear", "dynamic_random", "dynamic_round_robin", "epsilon_greedy", "softmax")
NAMES = (*_SUMMARIES, _CLAIMS, _TUNERS, _LEFT_OUT)


def page(name: str) -> str:
    """The tables of that name."""
    if name in (_TUNERS, _LEFT_OUT):
        return (RESULTS / f"{name}.md").read_text().partition("\n")[2]
    if name == _CLAIMS:
        return ""
    return (_SUMMARIES[name] / "dynatune.md").read_text().partition("\n")[2]


def numbers(name: str) -> dict[str, str]:
    """Figures that prose may quote."""
    if name == _CLAIMS:
        claims = json.loads((RESULTS / f"{_CLAIMS}.json").read_text())
        return {key: _said(key, value) for part in claims.values() for key, value in part.items()}
    if name == _TUNERS:
        return _tuner_numbers(json.loads((RESULTS / f"{_TUNERS}.json").read_text()))
    if name == _LEFT_OUT:
        excess = json.loads((RESULTS / f"{_LEFT_OUT}.json").read_text())["mean_excess"]
        return {key: f"{value:.2f}" for key, value in left_out_numbers(excess).items()}
    data = json.loads((_SUMMARIES[name] / "dynatune.json").read_text())
    found = {"inside 90 %": f"{100 * data['calibration']:.0f}", "forecasts": f"{data['forecasts']:,}"}
    for share, by_policy in data["times_faster"].items():
        for ours, others in by_policy.items():
            found |= {f"{ours} against {other}, {share}": f"{times:.2f}" for other, times in others.items()}
        found[f"times the oracle's time, {share}"] = f"{1 / by_policy['dynatune']['oracle']:.2f}"
        found[f"dynatune_paper: times the oracle's time, {share}"] = f"{1 / by_policy['dynatune_paper']['oracle']:.2f}"
        for ours, other in product(("dynatune", "dynatune_paper"), _MORE):
            found[f"{ours} against {other}, {share}"] = f"{_sooner(data['seconds_to_within'][share], ours, other):.2f}"
    for policy in next(iter(data["mean_excess"].values())):
        found[f"{policy}: less excess than gradient"] = f"{less_excess(data['mean_excess'], policy):.2f}"
    near = data["times_the_oracle"]  # none where each model was recorded once
    for policy in ("informed", "dynatune", "gradient") if near else ():
        times = {name: row[policy] for name, row in near.items()}
        found[f"{policy}: times the oracle's time"] = f"{geometric_mean(times.values()):.1f}"
        found[f"{policy}: least times the oracle's time"] = f"{min(times.values()):.1f}"
        found[f"{policy}: most times the oracle's time"] = f"{max(times.values()):.1f}"
        found |= {f"{policy}: times the oracle's time, {name}": f"{value:.1f}" for name, value in times.items()}
    return found


def _said(key: str, value: float) -> str:
    """Counts as they are, shares in per cent, the rest with two digits."""
    if isinstance(value, int):
        return str(value)
    is_share = key.startswith(("curves", "steps", "gain in"))
    if key.startswith("scheduling"):
        return f"{100 * value:.1f}"
    return f"{100 * value:.0f}" if is_share else f"{value:.2f}"


def _tuner_numbers(data: dict[str, Any]) -> dict[str, str]:
    found = {f"{ours} against {o}": f"{t:.2f}" for ours, by in data["times_sooner"].items() for o, t in by.items()}
    loads = [load for r in data["recordings"] for load in (r["load"][0], r["load_at_end"][0])]
    found |= {"least load": f"{min(loads):.0f}", "most load": f"{max(loads):.0f}"}
    trials = [r["trials"] for r in data["recordings"]]
    return found | {"sessions": f"{len(trials)}", "trials": f"{sum(trials):,}"}


def _sooner(seconds: dict[str, dict[str, dict[str, float]]], ours: str, other: str) -> float:
    """As `summary.speedup`, of the medians in the file."""
    pairs = [(by_policy[other]["median"], by_policy[ours]["median"]) for by_policy in seconds.values()]
    return geometric_mean([there / here for there, here in pairs if there > 0 and here > 0])
