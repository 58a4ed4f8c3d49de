"""The tables and the picture of `benchmarks.methods`, from its raw results alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import pictures
from benchmarks.spread import by_process, table, with_range

Result = Mapping[str, Any]
Curve = list[tuple[float, float]]

CORNER = "gradient, evolution 64"
WITHIN = (0.25, 0.10, 0.05, 0.01)
_NOTHING_TO_TUNE = 1.10
_RESAMPLES, _CONFIDENCE = 2000, 0.9


def markdown(parts: Mapping[str, Result]) -> str:
    lines = [
        "Latency is the sum over operators, from times measured again afterwards. Seconds count from the start of the",
        "command until the latency is within so much of the best programs of all runs together, and stays there:",
        "medians over seeds. A run that never gets there counts as longer than it took; > marks a median of such runs.",
        '"Its last latency" is that of the slowest run of the side compared with, which all its runs reach.',
    ]
    idle = [name for name, result in parts.items() if untuned(result) <= _NOTHING_TO_TUNE]
    for name, result in parts.items():
        lines += ["", f"### {name}", "", *_times(result), "", *_gains(result)]
    if idle:
        lines += ["", f"Nothing to tune (default programs within 10 % of the best known): {', '.join(idle)}."]
    return "\n".join(lines) + "\n"


def numbers(parts: Mapping[str, Result]) -> dict[str, str]:
    """How much sooner each side is than the stock corner, by part, and the geometric mean over parts worth tuning."""
    found: dict[str, str] = {}
    for share in (None, *WITHIN):
        to = "to its last latency" if share is None else f"to within {100 * share:g} %"
        of_sides: dict[str, list[float]] = {}
        for name, result in parts.items():
            if untuned(result) <= _NOTHING_TO_TUNE or CORNER not in sides(result):
                continue
            for side in sides(result):
                theirs, ours = (median(times(result, one, share)) for one in (CORNER, side))
                if 0 < max(theirs, ours) < math.inf and min(theirs, ours):
                    found[f"{name}: {side} {to}"] = f"{theirs / ours:.1f}"
                    of_sides.setdefault(side, []).append(theirs / ours)
        for side, ratios in of_sides.items():
            found[f"{side} {to}"] = f"{math.exp(np.mean(np.log(ratios))):.1f}"
    return found


def sides(result: Result) -> list[str]:
    return list(dict.fromkeys(run["side"] for run in result["runs"]))


def lowest(result: Result) -> float:
    """The sum over operators of the fastest program that any run held."""
    return float(sum(
        operator["weight"] * min(seconds for seconds in result["seconds"][key] if seconds is not None)
        for key, operator in result["operators"].items()
    ))  # fmt: skip


def untuned(result: Result) -> float:
    """Latency at the start of the first run, relative to the best known."""
    return curve(result, result["runs"][0])[0][1] / lowest(result)


def curve(result: Result, run: Mapping[str, Any]) -> Curve:
    """Latency over time; it starts with the default programs."""
    operators = result["operators"]
    held = {key: _seconds(result, key, operator["default"]) for key, operator in operators.items()}
    points = [(0.0, sum(held.values()))]
    for at, key, number in sorted(run["steps"], key=lambda step: step[0]):
        held[key] = _seconds(result, key, number)
        points.append((at, sum(held.values())))
    return points


def _seconds(result: Result, key: str, number: int) -> float:
    """What an operator takes in one run of the model with a program; a program that fails now counts as the slowest."""
    known = result["seconds"][key]
    seconds = known[number] if known[number] is not None else max(time for time in known if time is not None)
    return float(result["operators"][key]["weight"] * seconds)


def reached(points: Curve, latency: float) -> float:
    """From when on it is never slower; infinite if it ends slower."""
    since = math.inf
    for at, value in reversed(points):
        if value > latency:
            break
        since = at
    return since


def times(result: Result, side: str, share: float | None) -> list[float]:
    """Seconds until within that share, run by run; infinite if never. Without one, until the last latency of the
    stock corner's slowest run, which all its runs reach.
    """
    limit = _corner_end(result) if share is None else (1 + share) * lowest(result)
    return [reached(curve(result, run), limit) for run in result["runs"] if run["side"] == side]


def _corner_end(result: Result) -> float:
    return max(curve(result, run)[-1][1] for run in result["runs"] if run["side"] == CORNER)


def _times(result: Result) -> list[str]:
    rows = []
    for side in sides(result):
        runs = [run for run in result["runs"] if run["side"] == side]
        ends = [curve(result, run)[-1][1] / lowest(result) for run in runs]
        cells = [_censored(times(result, side, share), [run["seconds"] for run in runs]) for share in WITHIN]
        rows.append([side, str(len(runs)), with_range([run["trials"] for run in runs], 0), *cells, with_range(ends)])
    heads = [f"s to {100 * share:g} %" for share in WITHIN]
    return table(["side", "runs", "trials", *heads, "end to best known"], rows)


def _censored(found: Sequence[float], ended: Sequence[float]) -> str:
    """The median, with > if it is of a run that ended before."""
    known = sorted((min(time, end), time == math.inf) for time, end in zip(found, ended, strict=True))
    middle, never = known[len(known) // 2]
    return f"{'> ' if never else ''}{middle:.0f}"


def _gains(result: Result) -> list[str]:
    """Each side against the stock corner: how much sooner, with intervals over seeds, and how fast in the end."""
    if CORNER not in sides(result):
        return []
    rng = np.random.default_rng(0)
    rows = []
    for side in sides(result):
        cells = [_ratio(result, side, share, rng) for share in (None, *WITHIN)]
        rows.append([side, *cells, _whole(result, side)])
    heads = ["sooner, its last latency", *(f"sooner, {100 * share:g} %" for share in WITHIN)]
    return table([f"against {CORNER}", *heads, "whole model, times as fast"], rows)


def _ratio(result: Result, side: str, share: float | None, rng: np.random.Generator) -> str:
    def of(name: str) -> list[float]:
        ends = [run["seconds"] for run in result["runs"] if run["side"] == name]
        return [min(pair) for pair in zip(times(result, name, share), ends, strict=True)]

    theirs, ours = of(CORNER), of(side)
    if all(time == math.inf for time in times(result, side, share)):
        return "never"
    if not min(*theirs, *ours):
        return "untuned"
    drawn = [
        np.median(rng.choice(theirs, len(theirs))) / np.median(rng.choice(ours, len(ours))) for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(drawn, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    more = "> " if any(time == math.inf for time in times(result, CORNER, share)) else ""
    return f"{more}{median(theirs) / median(ours):.1f} ({low:.1f} - {high:.1f})"


def _whole(result: Result, side: str) -> str:
    """Whole compiled models, in turns, all pairs of seeds."""
    whole = result["whole"]
    theirs, ours = ([name for name in whole if name.startswith(f"{one}, seed")] for one in (CORNER, side))
    ratios = [ratio for a in theirs for b in ours for ratio in by_process(whole[a], whole[b])]
    return with_range(ratios, 2) if ratios else ""


_COLOURS = {
    "gradient, evolution 64": "#59636e",
    "dynatune, evolution 64": "#c77700",
    "gradient, evolution 16": "#9aa4ae",
    "dynatune, evolution 16": "#d9a962",
    "gradient, diffusion 8": "#3a8f3a",
    "dynatune, diffusion 8": pictures.OURS,
}


def picture(parts: Mapping[str, Result], path: Path) -> None:
    def fill(figure: Any, *panels: Any) -> None:
        figure.subplots_adjust(left=0.1 if len(parts) == 1 else 0.07, right=0.98, wspace=0.3, top=0.76, bottom=0.15)
        for axes, (name, result) in zip(panels, parts.items(), strict=True):
            for side in sides(result):
                for order, run in enumerate(r for r in result["runs"] if r["side"] == side):
                    points = curve(result, run)
                    at, value = zip(*[(seconds, latency / lowest(result)) for seconds, latency in points], strict=True)
                    label = side if order == 0 else None
                    axes.step(at, value, where="post", color=_COLOURS[side], lw=1.1, label=label)
            axes.set_title(name, pad=40)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_ylim(1, None)
            axes.set_xlabel("seconds from the start of the command")
            pictures.legend(axes, ncols=2)
        panels[0].set_ylabel("latency to the best known")

    pictures.draw(path, (max(6.4, 4.4 * len(parts) + 0.6), 3.8), len(parts), fill)
