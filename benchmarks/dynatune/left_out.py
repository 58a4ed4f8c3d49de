"""How the variants of DynaTune's choice do on models they were not chosen on, over both machines' recordings.

For every model, the variant with the least mean excess on all other models (those of its name, in another type or on
the other machine, are left out as well) is judged on it. `python -m benchmarks.dynatune left_out` prints the table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean

from benchmarks.dynatune.curves import GPU_CURVES, read_all
from benchmarks.dynatune.replays import LABELS, Study, less_excess
from benchmarks.spread import table

VARIANTS = (
    "dynatune",
    "dynatune_no_potential",
    "dynatune_per_slot",
    "no_belief",
    "no_belief_per_second",
    "steady_potential",
)
BASE = "gradient"
NAME = "dynatune_left_out"
# Recording's machine and model -> policy -> mean excess.
Excess = dict[str, dict[str, float]]


def make(study: Study) -> list[Path]:
    excess: Excess = {}
    folder = study.curves / GPU_CURVES.name
    on_gpu = replace(study, recordings=read_all(folder) if folder.exists() else [], _kept={}, _beliefs={})
    for machine, one in (("CPU", study), ("GPU", on_gpu)):
        for model in one.models:
            runs = {policy: one.runs(model, policy) for policy in (*VARIANTS, BASE)}
            excess[f"{machine}, {model}"] = {p: fmean(run.mean_excess for run in by) for p, by in runs.items()}
    content = {"seeds": study.seeds, "slot_trials": study.slot_trials, "mean_excess": excess, "chosen": choose(excess)}
    data, page = study.results / f"{NAME}.json", study.results / f"{NAME}.md"
    study.results.mkdir(parents=True, exist_ok=True)
    data.write_text(json.dumps(content, indent=1) + "\n")
    page.write_text(markdown(excess))
    return [data, page]


def choose(excess: Excess) -> dict[str, str]:
    """For each model the variant that is best on the others."""
    chosen = {}
    for model in excess:
        others = {other: row for other, row in excess.items() if _kin(other) != _kin(model)}
        chosen[model] = max(VARIANTS, key=partial(less_excess, others))
    return chosen


def _kin(model: str) -> str:
    """Its name without machine and type."""
    return model.partition(", ")[2].partition("-")[0]


def numbers(excess: Excess) -> dict[str, float]:
    """Gradient's mean excess over that of the variant chosen without the model, and of each variant on all models."""
    chosen = choose(excess)
    found = {"chosen on others": geometric_mean([row[BASE] / row[chosen[model]] for model, row in excess.items()])}
    found |= {variant: less_excess(excess, variant) for variant in VARIANTS}
    for machine in ("CPU", "GPU"):
        own = {model: row for model, row in excess.items() if model.startswith(machine)}
        found |= {f"{variant}, {machine}": less_excess(own, variant) for variant in VARIANTS if own}
    return found


def markdown(excess: Excess) -> str:
    chosen = choose(excess)
    rows = [
        [model, LABELS[chosen[model]], *(f"{row[BASE] / row[p]:.2f}" for p in (chosen[model], *VARIANTS))]
        for model, row in excess.items()
    ]
    whole = numbers(excess)
    rows.append(["geometric mean", "", *(f"{whole[name]:.2f}" for name in ("chosen on others", *VARIANTS))])
    head = ["recorded on", "chosen on the others", "it", *(LABELS[variant] for variant in VARIANTS)]
    lines = ["# DynaTune's variants on models they were not chosen on", "", *table(head, rows), ""]
    return "\n".join([*lines, "Gradient's mean excess over the lowest latency divided by the policy's.", ""])
