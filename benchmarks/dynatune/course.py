"""Figures of how policies do in the course of tuning: the model's latency by time, and the regret by slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from benchmarks.dynatune.plotting import band, draw_band, legend, lines, panels, save
from benchmarks.dynatune.replays import LABELS, Study
from slipstream.schedulers.replay import Replay

# Figure -> the policies it compares; the numbers are those of the paper's figures.
CONVERGENCE = {
    "against_sequential": ("dynatune", "sequential", "oracle", "dynatune_paper"),  # 7
    "against_static": ("dynatune", "random", "round_robin", "linear"),  # 8: policies that plan ahead
    "against_dynamic": ("dynatune", "dynamic_random", "dynamic_round_robin"),  # 9: they predict nothing
    "action_functions": ("dynatune", "epsilon_greedy", "softmax"),  # 14 to 18: on the same belief
    "against_gradient": ("dynatune", "gradient", "sequential"),  # 20
    "against_gradient_detail": ("dynatune", "gradient"),  # 21: its end
    "ablation": ("dynatune", "dynatune_no_potential", "dynatune_paper", "no_belief"),
}
REGRET = ("dynatune", "dynatune_paper", "gradient", "round_robin", "sequential")
_POINTS = 240
_DETAIL = 0.15

# The places of several runs, and the value of each run at each of them.
Values = tuple[Sequence[float], Iterable[Sequence[float]]]


def convergence(study: Study, name: str) -> list[Path]:
    """The model's latency by tuning time; a `_detail` shows only the last 15 % above the lowest."""
    policies = CONVERGENCE[name]

    def latency(model: str, runs: Sequence[Replay]) -> Values:
        end = max(run.times[-1] for policy in policies for run in study.runs(model, policy))
        grid = np.linspace(0, end, _POINTS).tolist()
        return grid, ([1e3 * run.latency_at(t) for t in grid] for run in runs)

    def mark_lowest(model: str, axis: Axes) -> None:
        lowest = 1e3 * min(run.lowest for policy in policies for run in study.runs(model, policy))
        axis.axhline(lowest, color="0.7", linewidth=0.6)
        if name.endswith("_detail"):
            axis.set_ylim(lowest * (1 - _DETAIL / 20), lowest * (1 + _DETAIL))

    units = ("tuning time, s", "model latency, ms")
    return _draw(study, name, policies, latency, units, ("seconds", "latency_ms"), mark_lowest)


def regret(study: Study) -> list[Path]:
    """What the best choice of each slot, known in hindsight, would have brought beyond (section 4.1), added up."""

    def added_up(model: str, runs: Sequence[Replay]) -> Values:
        sums = [[0.0, *accumulate(1e3 * slot for slot in run.regret)] for run in runs]
        length = min(map(len, sums))
        return range(length), (values[:length] for values in sums)

    return _draw(study, "regret", REGRET, added_up, ("slot", "cumulative regret, ms"), ("slot", "regret_ms"))


def _draw(
    study: Study,
    name: str,
    policies: Sequence[str],
    values: Callable[[str, Sequence[Replay]], Values],
    units: tuple[str, str],
    columns: tuple[str, str],
    finish: Callable[[str, Axes], None] = lambda model, axis: None,
) -> list[Path]:
    """A panel for each model with a band for each policy."""
    figure, axes = panels(list(study.models))
    rows: list[tuple[object, ...]] = []
    for model, axis in axes.items():
        for policy, line in zip(policies, lines(), strict=False):
            places, by_run = values(model, study.runs(model, policy))
            points = band(list(by_run))
            draw_band(axis, places, points, LABELS[policy], line)
            rows += [(model, policy, place, *point) for place, point in zip(places, points, strict=True)]
        finish(model, axis)
        axis.set(xlabel=units[0], ylabel=units[1])
    legend(figure, axes)
    return save(figure, study.figures, name, ("model", "policy", *columns, "low_ms", "high_ms"), rows)
