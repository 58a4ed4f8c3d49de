"""The tables of `benchmarks.speedup`, from its raw results alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

import numpy as np

PRESET_END, PRESET_OWN = "preset end", "preset own"
_SAME = 1.01  # as fast as: within one per cent


def ratios(result: Mapping[str, Any], name: str, to: str) -> list[float]:
    """Latency of an artifact to that of another one in the same round, all rounds of all processes."""
    pairs = zip(result["stages"][name]["blocks"], result["stages"][to]["blocks"], strict=True)
    return [a / b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=False)]


def reached(result: Mapping[str, Any], side: str, goal: str) -> float:
    """Seconds after which `side` had an artifact as fast as the one called `goal`; infinite if it never had."""
    names = [name for name in result["stages"] if name.startswith(f"{side} ") and name != PRESET_OWN]
    there = [name for name in names if median(ratios(result, name, goal)) <= _SAME]
    return min((result["stages"][name]["seconds"] for name in there), default=math.inf)


def markdown(raw: Mapping[str, Any]) -> str:
    """The tables, from raw results alone."""
    models: Mapping[str, Any] = raw["models"]
    lines = ["# Time to MetaSchedule's latency", ""]
    lines += ["Seconds to a model as fast (within 1 %) as the preset's at its end. Ours: each seed.", ""]
    lines += ["| model | preset's end | preset is there | ours is there | times sooner than its end | than itself |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    lines += _times(models)
    lines += ["", "The same with the best programs that the preset's search found itself, without our defaults:", ""]
    lines += ["| model | preset's end | ours is there | times sooner | its latency to that of our untuned model |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for model, result in models.items():
        end, ours = result["stages"][PRESET_END]["seconds"], _ours(result, PRESET_OWN)
        cells = [f"{end:.0f}", ", ".join(f"{seconds:.0f}" for seconds in ours), f"{end / median(ours):.1f}"]
        lines.append(f"| {model} | {' | '.join([*cells, _quartiles(ratios(result, PRESET_OWN, 'untuned'))])} |")
    for model, result in models.items():
        lines += [
            "",
            f"## {model}",
            "",
            "| artifact | there after, s | ms | ratio to the preset's end | to ONNX Runtime |",
        ]
        lines += ["| --- | --- | --- | --- | --- |"]
        for name, row in result["stages"].items():
            latency = 1e3 * median([block for blocks in row["blocks"] for block in blocks])
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
            cells = [_quartiles(ratios(result, name, to)) for to in (PRESET_END, "onnxruntime")]
            lines.append(f"| {name} | {seconds} | {latency:.2f} | {' | '.join(cells)} |")
        lines += ["", "| share of wall clock, % | " + " | ".join(result["sides"]) + " |"]
        lines += ["| --- |" + " --- |" * len(result["sides"])]
        for part in ("search", "build", "run", "train", "schedule", "store", "compile"):
            shares = [100 * side["split"].get(part, 0.0) / side["seconds"] for side in result["sides"].values()]
            lines.append(f"| {part} | " + " | ".join(f"{share:.1f}" for share in shares) + " |")
    return "\n".join(lines) + "\n"


def _ours(result: Mapping[str, Any], goal: str) -> list[float]:
    """After how many seconds each of our runs is there."""
    return [reached(result, side, goal) for side in result["sides"] if side != "preset"]


def _times(models: Mapping[str, Any]) -> list[str]:
    """A row for each model and one for the geometric mean of medians over seeds."""
    lines, sooner = [], []
    for model, result in models.items():
        end = result["stages"][PRESET_END]["seconds"]
        itself = min(end, reached(result, "preset", PRESET_END))
        ours = _ours(result, PRESET_END)
        sooner.append((end / median(ours), itself / median(ours)))
        cells = [f"{end:.0f}", f"{itself:.0f}", ", ".join(f"{seconds:.0f}" for seconds in ours)]
        lines.append(f"| {model} | {' | '.join([*cells, *(f'{times:.1f}' for times in sooner[-1])])} |")
    if all(min(times) > 0 for times in sooner):
        means = [geometric_mean(column) for column in zip(*sooner, strict=True)]
        lines.append(f"| geometric mean | | | | {' | '.join(f'{mean:.1f}' for mean in means)} |")
    return lines


def _quartiles(values: Sequence[float]) -> str:
    low, high = np.quantile(values, [0.25, 0.75])
    return f"{median(values):.3f} ({low:.3f} - {high:.3f})"
