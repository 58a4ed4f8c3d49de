"""Cumulative regret: what the best choice of each slot, known in hindsight, would have brought beyond (section 4.1).

python -m benchmarks.dynatune.regret
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from benchmarks.dynatune.command import run
from benchmarks.dynatune.plotting import band, draw_band, legend, lines, panels, save
from benchmarks.dynatune.replays import LABELS, Study

POLICIES = ("dynatune", "dynatune_paper", "gradient", "round_robin", "sequential")


def make(study: Study) -> list[Path]:
    figure, axes = panels(list(study.models))
    rows: list[tuple[object, ...]] = []
    for model, axis in axes.items():
        for policy, line in zip(POLICIES, lines(), strict=False):
            sums = [[0.0, *accumulate(1e3 * slot for slot in one.regret)] for one in study.runs(model, policy)]
            length = min(map(len, sums))
            points = band([run[:length] for run in sums])
            draw_band(axis, range(length), points, LABELS[policy], line)
            rows += [(model, policy, slot, *point) for slot, point in enumerate(points)]
        axis.set_xlabel("slot")
        axis.set_ylabel("cumulative regret, ms")
    legend(figure, axes)
    return save(figure, study.figures, "regret", ("model", "policy", "slot", "regret_ms", "low_ms", "high_ms"), rows)


if __name__ == "__main__":
    run(make, __doc__)
