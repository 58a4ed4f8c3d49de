"""Figures of how the model's latency falls with tuning time, policy by policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.dynatune.plotting import band, draw_band, legend, lines, panels, save
from benchmarks.dynatune.replays import LABELS, Study

HEADER = ("model", "policy", "seconds", "latency_ms", "low_ms", "high_ms")
_POINTS = 240
_DETAIL = 0.15


def convergence(study: Study, name: str, policies: Sequence[str], *, detail: bool = False) -> list[Path]:
    """A panel for each model; `detail` shows only the last 15 % above the lowest latency."""
    figure, axes = panels(list(study.models))
    rows: list[tuple[object, ...]] = []
    for model, axis in axes.items():
        by_policy = {policy: study.runs(model, policy) for policy in policies}
        end = max(run.times[-1] for runs in by_policy.values() for run in runs)
        grid = np.linspace(0, end, _POINTS).tolist()
        for (policy, runs), line in zip(by_policy.items(), lines(), strict=False):
            points = band([[1e3 * run.latency_at(t) for t in grid] for run in runs])
            draw_band(axis, grid, points, LABELS[policy], line)
            rows += [(model, policy, t, *point) for t, point in zip(grid, points, strict=True)]
        lowest = 1e3 * min(run.lowest for runs in by_policy.values() for run in runs)
        axis.axhline(lowest, color="0.7", linewidth=0.6)
        if detail:
            axis.set_ylim(lowest * (1 - _DETAIL / 20), lowest * (1 + _DETAIL))
        axis.set_xlabel("tuning time, s")
        axis.set_ylabel("model latency, ms")
    legend(figure, axes)
    return save(figure, study.figures, name, HEADER, rows)
