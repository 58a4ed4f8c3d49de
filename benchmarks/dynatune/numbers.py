"""The figures of `benchmarks/results/dynatune.json` that prose may quote."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    found = {"inside 90 %": f"{100 * data['calibration']:.0f}", "forecasts": f"{data['forecasts']:,}"}
    for share, by_policy in data["times_faster"].items():
        for ours, others in by_policy.items():
            found |= {f"{ours} against {other}, {share}": f"{times:.2f}" for other, times in others.items()}
        oracle = by_policy["dynatune"]["oracle"]
        found[f"dynatune, times the oracle's time, {share}"] = f"{1 / oracle:.2f}"
    near = data["times_the_oracle"]
    for policy in ("informed", "dynatune", "gradient"):
        found[f"{policy}, times the oracle's time"] = f"{geometric_mean([row[policy] for row in near.values()]):.1f}"
        found |= {f"{name}: {policy}, times the oracle's time": f"{row[policy]:.1f}" for name, row in near.items()}
    return found
