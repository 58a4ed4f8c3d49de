"""The tables of `benchmarks.speedup`, from its raw results alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import geometric_mean, median
from typing import Any

from benchmarks import spread
from benchmarks.spread import table, with_quartiles, with_range

PRESET_END, PRESET_OWN = "preset end", "preset own"
_MINUTES = (1, 3, 10)
_OVERRUN = 1.1  # a session of ten minutes may take a little longer
_AFTER_THE_SAME_TIME = """\
Latency of our model to that of the preset's. Ours is the end of a session of that length; the preset's is
compiled with the best it had measured by then, and what its session takes to finish comes on top.
In brackets the lowest and the highest median of a process and seed: how its memory lies makes a difference."""


def ratios(result: Mapping[str, Any], name: str, to: str) -> list[float]:
    """Latency of an artifact to that of another one in the same round, all rounds of all processes."""
    return spread.ratios(result["stages"][name]["blocks"], result["stages"][to]["blocks"])


def seeds(result: Mapping[str, Any]) -> list[str]:
    """What our sessions are called, by seeds."""
    return list(dict.fromkeys(name.partition(" ")[0] for name in result["stages"] if name.startswith("ours-")))


def reached(result: Mapping[str, Any], side: str, goal: str) -> float:
    """Seconds after which `side` had an artifact as fast as the one called `goal`; infinite if it never had."""
    names = [name for name in result["stages"] if name.startswith(f"{side} ") and name != PRESET_OWN]
    there = [name for name in names if median(ratios(result, name, goal)) <= spread.AS_FAST]
    return min((result["stages"][name]["seconds"] for name in there), default=math.inf)


def by_process(result: Mapping[str, Any], minutes: float) -> list[float]:
    """Latency of ours to the preset's after so many minutes, the median of each process and seed."""
    ours = [_model_after(result, side, minutes) for side in seeds(result)]
    theirs = _model_after(result, "preset", minutes)
    return [ratio for mine in ours if mine and theirs for ratio in spread.by_process(mine, theirs)]


def _model_after(result: Mapping[str, Any], side: str, minutes: float) -> list[list[float]]:
    """What a side's model took that was there after so many minutes, or at its end if that was sooner."""
    stages = result["stages"]
    if f"{side} {minutes:g} min" in stages:
        return list(stages[f"{side} {minutes:g} min"]["blocks"])
    end = stages.get(f"{side} end")
    return list(end["blocks"]) if end and end["seconds"] <= 60 * minutes * _OVERRUN else []


def markdown(models: Mapping[str, Any]) -> str:
    lines = ["Seconds to a model as fast (within 1 %) as the preset's at its end. Ours: each seed.", ""]
    lines += ["| model | preset's end | preset is there | ours is there | times sooner than its end | than itself |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    lines += _times(models)
    lines += ["", "The same with the best programs that the preset's search found itself, without our defaults:", ""]
    rows = []
    for model, result in models.items():
        end, ours = result["stages"][PRESET_END]["seconds"], _ours(result, PRESET_OWN)
        to_untuned = with_quartiles(ratios(result, PRESET_OWN, "untuned"))
        rows.append([model, f"{end:.0f}", _seconds(result, ours), f"{end / median(ours):.1f}", to_untuned])
    columns = ["model", "preset's end", "ours is there", "times sooner", "its latency to that of our untuned model"]
    lines += table(columns, rows)
    lines += ["", "### After the same time", "", _AFTER_THE_SAME_TIME, ""]
    rows = []
    for model, result in models.items():
        by_minutes = [by_process(result, minutes) for minutes in _MINUTES]
        rows.append([model, *(with_range(values) if values else "" for values in by_minutes)])
    lines += table(["model", *(f"{minutes} min" for minutes in _MINUTES)], rows)
    for model, result in models.items():
        rows = []
        for name, row in result["stages"].items():
            latency = 1e3 * median([block for blocks in row["blocks"] for block in blocks])
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
            cells = [with_quartiles(ratios(result, name, to)) for to in (PRESET_END, "onnxruntime")]
            rows.append([name, seconds, f"{latency:.2f}", *cells])
        columns = ["artifact", "there after, s", "ms", "ratio to the preset's end", "to ONNX Runtime"]
        lines += ["", f"### {model}", "", *table(columns, rows)]
        rows = []
        for part in ("search", "build", "run", "train", "schedule", "store", "compile"):
            shares = [100 * side["split"].get(part, 0.0) / side["seconds"] for side in result["sides"].values()]
            rows.append([part, *(f"{share:.1f}" for share in shares)])
        lines += ["", f"### Wall clock of {model}", "", *table(["share, %", *result["sides"]], rows)]
    return "\n".join(lines) + "\n"


def _ours(result: Mapping[str, Any], goal: str) -> list[float]:
    """After how many seconds each of our seeds is there."""
    return [reached(result, side, goal) for side in seeds(result)]


def _seconds(result: Mapping[str, Any], there: Iterable[float]) -> str:
    """Of each seed; a text for one that does not reach it in its longest session."""
    stages = result["stages"]
    longest = (max(row["seconds"] for name, row in stages.items() if name.startswith(f"{s} ")) for s in seeds(result))
    return ", ".join(
        f"{seconds:.0f}" if math.isfinite(seconds) else f"not by {end:.0f}"
        for seconds, end in zip(there, longest, strict=True)
    )


def _times(models: Mapping[str, Any]) -> list[str]:
    """A row for each model, with medians over seeds. No mean: some models have nothing to tune."""
    lines, sooner = [], _sooner(models)
    for model, result in models.items():
        end = result["stages"][PRESET_END]["seconds"]
        seconds = [end, min(end, reached(result, "preset", PRESET_END))]
        ours = _seconds(result, _ours(result, PRESET_END))
        cells = [*(f"{there:.0f}" for there in seconds), ours, *(f"{times:.1f}" for times in sooner[model])]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return lines


def _sooner(models: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Model -> times sooner than the preset's end, and than the preset is as fast as at its end."""
    found = {}
    for model, result in models.items():
        end, ours = result["stages"][PRESET_END]["seconds"], median(_ours(result, PRESET_END))
        found[model] = (end / ours, min(end, reached(result, "preset", PRESET_END)) / ours)
    return found


def numbers(models: Mapping[str, Any]) -> dict[str, str]:
    """How much sooner we are there, and the latency ours ends at to that of others."""
    sooner = _sooner(models)
    found = {}
    for column, of in enumerate(("its end", "itself")):
        by_model = {model: times[column] for model, times in sooner.items()}
        found |= {f"{model}: times sooner than {of}": f"{times:.1f}" for model, times in by_model.items()}
    for to, name in ((PRESET_END, "preset"), ("untuned", "untuned")):
        by_model = {model: median(_final_ratios(result, to)) for model, result in models.items()}
        found[f"latency to {name}"] = f"{geometric_mean(by_model.values()):.2f}"
        found |= {f"{model}: latency to {name}": f"{ratio:.2f}" for model, ratio in by_model.items()}
        found[f"least latency to {name}"] = f"{min(by_model.values()):.2f}"
        found[f"most latency to {name}"] = f"{max(by_model.values()):.2f}"
    own = [median(ratios(result, PRESET_OWN, "untuned")) for result in models.values()]
    return found | {"least preset own to untuned": f"{min(own):.2f}", "most preset own to untuned": f"{max(own):.2f}"}


def _final_ratios(result: Mapping[str, Any], to: str) -> list[float]:
    """Latency at the end of our longest run to that of another artifact, all rounds."""
    sides = [side for side in result["sides"] if side != "preset"]
    return [ratio for side in sides for ratio in ratios(result, f"{side} end", to)]
