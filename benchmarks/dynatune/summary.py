"""The summary table: how long each policy takes to come near the lowest latency, and whether DynaTune meets its bars.

A time is the median over seeds. "Lowest" is the latency with every curve at its end. Means over models are geometric,
as means of ratios; a model that needs no tuning to be that near is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from benchmarks.dynatune.calibration import inside
from benchmarks.dynatune.replays import LABELS, Study, less_excess
from benchmarks.spread import table
from slipstream.statistics import median, median_interval

FRACTIONS = (0.01, 0.05, 0.10, 0.25)
OURS = (
    "dynatune",
    "dynatune_no_potential",
    "dynatune_per_slot",
    "dynatune_paper",
    "no_belief",
    "no_belief_per_second",
    "steady_potential",
)
OTHERS = ("sequential", "round_robin", "gradient", "steady_potential", "oracle")

# Model -> policy -> seconds.
Times = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Bar:
    """Something to reach: `value` has to be from `least` to `most`."""

    name: str
    value: float
    least: float
    most: float

    @property
    def met(self) -> bool:
        return self.least <= self.value <= self.most

    def to_json(self) -> dict[str, Any]:
        limits = {"least": self.least if self.least > 0 else None, "most": self.most if self.most < math.inf else None}
        return {"name": self.name, "value": self.value, **limits, "met": self.met}


def speedup(times: Times, ours: str, other: str) -> float:
    """How many times sooner `ours` is there than `other`, on average over models; NaN if no model can be compared."""
    pairs = [(by_policy[other], by_policy[ours]) for by_policy in times.values()]
    ratios = [there / here for there, here in pairs if there > 0 and here > 0]
    return geometric_mean(ratios) if ratios else math.nan


def bars(times: Times, calibrated: float) -> list[Bar]:
    """What DynaTune has to reach."""
    return [
        Bar("times faster than sequential", speedup(times, "dynatune", "sequential"), 1.5, math.inf),
        Bar("times faster than round-robin", speedup(times, "dynatune", "round_robin"), 1.15, math.inf),
        Bar("times faster than gradient", speedup(times, "dynatune", "gradient"), 1.2, math.inf),
        Bar(
            f"times faster than {LABELS['steady_potential']}",
            speedup(times, "dynatune", "steady_potential"),
            1.1,
            math.inf,
        ),
        Bar("times the oracle's time", 1 / speedup(times, "dynatune", "oracle"), 0.0, 1.15),
        Bar("share of outcomes in 90 % intervals", calibrated, 0.80, 0.97),
    ]


def times_the_oracle(study: Study) -> dict[str, dict[str, float]]:
    """Recording -> times the oracle's time within 1 %, of the informed policy and ours, where both can be compared."""
    found: dict[str, dict[str, float]] = {}
    for recording in study.recordings:
        runs = {"informed": study.informed(recording)}
        runs |= {policy: study.runs_of(recording, policy) for policy in ("dynatune", "gradient")}
        oracle = median([run.time_to_within(FRACTIONS[0]) for run in study.runs_of(recording, "oracle")])
        if runs["informed"] and oracle > 0:
            seconds = {name: median([run.time_to_within(FRACTIONS[0]) for run in by]) for name, by in runs.items()}
            found[recording.name] = {name: round(value / oracle, 3) for name, value in seconds.items()}
    return found


def make(study: Study) -> list[Path]:
    hits = [hit for _, hit in inside(study)]
    calibrated = sum(hits) / len(hits) if hits else math.nan
    seconds = {f: {m: {p: _seconds(study, m, p, f) for p in LABELS} for m in study.models} for f in FRACTIONS}
    medians: dict[float, Times] = {
        f: {m: {p: median(runs) for p, runs in by_policy.items()} for m, by_policy in by_model.items()}
        for f, by_model in seconds.items()
    }
    excess = {m: {p: fmean(one.mean_excess for one in study.runs(m, p)) for p in LABELS} for m in study.models}
    reached = bars(medians[FRACTIONS[0]], calibrated)
    near = times_the_oracle(study)
    content = {
        "seeds": study.seeds,
        "slot_trials": study.slot_trials,
        "recordings": [{"name": r.name, "operators": len(r.operators), **r.about} for r in study.recordings],
        "seconds_to_within": {
            f"{f:.0%}": {m: {p: _spread(runs) for p, runs in row.items()} for m, row in seconds[f].items()}
            for f in FRACTIONS
        },
        "times_faster": {
            f"{f:.0%}": {ours: {other: _number(speedup(medians[f], ours, other)) for other in OTHERS} for ours in OURS}
            for f in FRACTIONS
        },
        "mean_excess": {m: {p: _number(value) for p, value in row.items()} for m, row in excess.items()},
        "times_the_oracle": near,
        "calibration": _number(calibrated),
        "forecasts": len(hits),
        "bars": [{**bar.to_json(), "value": _number(bar.value)} for bar in reached],
    }
    study.results.mkdir(parents=True, exist_ok=True)
    data, page = study.results / "dynatune.json", study.results / "dynatune.md"
    data.write_text(json.dumps(content, indent=1) + "\n")
    page.write_text(markdown(medians, excess, reached, near))
    return [data, page]


def markdown(
    medians: Mapping[float, Times],
    excess: Times,
    reached: Sequence[Bar],
    near: Mapping[str, Mapping[str, float]],
) -> str:
    """The same for people."""
    rows = []
    for bar in reached:
        least, most = [f"at least {bar.least:g}"] * (bar.least > 0), [f"at most {bar.most:g}"] * (bar.most < math.inf)
        rows.append([bar.name, " and ".join(least + most), f"{bar.value:.2f}", "yes" if bar.met else "**no**"])
    lines = ["# DynaTune on recorded curves", "", *table(["bar (within 1 %)", "needed", "seen", "met"], rows)]
    lines += ["", "## Mean excess over the lowest latency", ""]
    lines += [
        "Mean over the whole tuning time of the logarithm of latency to the lowest; gradient's over each policy's."
    ]
    rows = [
        [
            label,
            *(f"{row['gradient'] / row[policy]:.2f}" for row in excess.values()),
            f"{less_excess(excess, policy):.2f}",
        ]
        for policy, label in LABELS.items()
    ]
    lines += ["", *table(["policy", *excess, "geometric mean"], rows)]
    for fraction, times in medians.items():
        rows = [[label, *(f"{row[policy]:.0f}" for row in times.values())] for policy, label in LABELS.items()]
        lines += ["", f"## Seconds until within {fraction:.0%} of the lowest latency", ""]
        lines += [*table(["policy", *times], rows), "", "Times faster than the others, mean over models:", ""]
        rows = [[LABELS[ours], *(f"{speedup(times, ours, other):.2f}" for other in OTHERS)] for ours in OURS]
        lines += table(["", *(LABELS[other] for other in OTHERS)], rows)
    if near:
        lines += ["", "## How near the oracle can be", "", "Times the oracle's time to within 1 %. The informed policy"]
        lines += ["knows how the other recordings of the same operators went.", ""]
        policies = ("informed", "dynatune", "gradient")
        means = {policy: geometric_mean([row[policy] for row in near.values()]) for policy in policies}
        rows = [
            [name, *(f"{row[policy]:.2f}" for policy in policies)]
            for name, row in [*near.items(), ("geometric mean", means)]
        ]
        lines += table(["recording", "informed", "DynaTune", "gradient"], rows)
    return "\n".join(lines) + "\n"


def _seconds(study: Study, model: str, policy: str, fraction: float) -> list[float]:
    return [one.time_to_within(fraction) for one in study.runs(model, policy)]


def _spread(runs: Sequence[float]) -> dict[str, float]:
    interval = median_interval(runs)
    return {"median": round(median(runs), 3), "low": round(interval.low, 3), "high": round(interval.high, 3)}


def _number(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
