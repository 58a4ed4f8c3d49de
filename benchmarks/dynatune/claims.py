"""The figures that docs/dynatune.md holds against the paper's claims, apart from those of `summary`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from benchmarks.dynatune import challenges, transformation_space
from benchmarks.dynatune.replays import Study


def make(study: Study) -> list[Path]:
    """Write `dynatune_claims.json`."""
    content = {
        "challenges": challenges.findings(study.recordings),
        "transformation_space": transformation_space.findings(
            transformation_space.read(study.curves / transformation_space.MEASURED.name)
        ),
    }
    scheduling = study.figures / "scheduling_cost.csv"
    if scheduling.exists():
        with scheduling.open() as file:
            shares = {row["policy"]: float(row["share"]) for row in csv.DictReader(file)}
        content["scheduling_cost"] = {f"scheduling: share of a slot, {p}": shares[p] for p in ("dynatune", "emcee")}
    traces = study.figures / "mcmc_traces.csv"
    if traces.exists():
        with traces.open() as file:
            content["mcmc"] = {"mean acceptance": float(next(csv.DictReader(file))["mean_acceptance"])}
    study.results.mkdir(parents=True, exist_ok=True)
    path = study.results / "dynatune_claims.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return [path]
