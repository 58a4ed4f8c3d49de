"""What DynaTune starts from (the paper's section 3): cost and gain of operators, and the shape of tuning curves.

Figure 2 is `cost_and_gain`, figure 4 `tuning_curves`, both from the recorded curves. `findings` are their figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.dynatune.curves import Recording
from benchmarks.dynatune.plotting import legend, lines, panels, save
from benchmarks.dynatune.replays import Study
from benchmarks.spread import rank_correlation
from slipstream.belief.change_points import JUMP
from slipstream.schedulers.replay import RecordedCurve
from slipstream.statistics import median

_CURVES_EACH = 4  # of four models: the paper shows 16
_WORTH = 0.05  # curves that gain less have no shape to speak of


def cost_and_gain(study: Study) -> list[Path]:
    """For each operator its share of the model's FLOPs, of what tuning gained, and of the time that tuning took."""
    firsts = {model: recordings[0] for model, recordings in study.models.items()}
    figure, axes = panels(list(firsts))
    rows: list[tuple[object, ...]] = []
    for model, axis in axes.items():
        names = {operator.key: operator.name for operator in firsts[model].operators}
        curves = tunable(firsts[model])
        columns = shares(curves)
        for number, (column, line) in enumerate(zip(columns.T, lines(), strict=False)):
            label = ("FLOPs", "gain", "cost")[number]
            axis.bar(np.arange(len(curves)) + 0.27 * (number - 1), 100 * column, 0.27, color=line["color"], label=label)
        axis.set(xlabel="operator", ylabel="share of the model's, %")
        rows += [(model, names[c.key], *map(float, row)) for c, row in zip(curves, columns, strict=True)]
    legend(figure, axes)
    return save(figure, study.figures, "cost_and_gain", ("model", "operator", "flops", "gain", "cost"), rows)


def tuning_curves(study: Study) -> list[Path]:
    """Best FLOP/s by trials, of four operators of each model: those at even distances in the order of their FLOPs."""
    firsts = {model: recordings[0] for model, recordings in study.models.items()}
    figure, axes = panels(list(firsts))
    rows: list[tuple[object, ...]] = []
    for model, axis in axes.items():
        curves = sorted(tunable(firsts[model]), key=lambda curve: curve.flops)
        at = np.unique(np.linspace(0, len(curves) - 1, _CURVES_EACH).astype(int))
        for number, line in zip(at, lines(), strict=False):
            curve = curves[number]
            rate = [curve.flops / best / 1e9 if math.isfinite(best) else 0.0 for best in curve.best]
            axis.plot(rate, drawstyle="steps-post", **line)
            rows += [(model, curve.key, trial, value) for trial, value in enumerate(rate)]
        axis.set(xlabel="trial", ylabel="best GFLOP/s")
    return save(figure, study.figures, "tuning_curves", ("model", "operator", "trial", "gflops"), rows)


def tunable(recording: Recording) -> list[RecordedCurve]:
    """Operators that compute something and were tuned."""
    return [c for c in recording.replayable() if c.trials and c.flops and math.isfinite(c.best[0])]


def shares(curves: Sequence[RecordedCurve]) -> np.ndarray:
    """A row for each curve: shares of FLOPs, gain and cost."""
    columns = np.array(
        [(c.weight * c.flops, c.weight * (c.best[0] - c.best[-1]), c.seconds[-1]) for c in curves], dtype=float
    )
    total = columns.sum(axis=0)
    return np.asarray(columns / np.where(total > 0, total, 1.0))


def findings(recordings: Sequence[Recording]) -> dict[str, float]:
    """What the two figures show, over all recordings."""
    with_gain, with_cost, costliest, shape = [], [], [], list[tuple[float, float, int]]()
    for recording in recordings:
        curves = tunable(recording)
        if len(curves) < 3:
            continue
        flops, gain, cost = shares(curves).T
        with_gain.append(rank_correlation(flops, gain))
        with_cost.append(rank_correlation(flops, cost))
        costliest.append(float(gain[int(np.argmax(cost))] / cost.max()))
        shape += [shape_of(c) for c in curves if c.best[0] > (1 + _WORTH) * c.best[-1]]
    return {
        "recordings": len(with_gain),
        "rank correlation of FLOPs and gain": fmean(with_gain),
        "rank correlation of FLOPs and cost": fmean(with_cost),
        "gain over cost of the costliest, least": min(costliest),
        "gain over cost of the costliest, most": max(costliest),
        "curves": len(shape),
        "gain in the first quarter of the trials, median": median([early for early, _, _ in shape]),
        "curves without a gain in the last quarter": fmean(late <= 0 for _, late, _ in shape),
        "curves with a jump after the first slot": fmean(jumps > 0 for _, _, jumps in shape),
        "jumps of a curve": fmean(jumps for _, _, jumps in shape),
    }


def shape_of(curve: RecordedCurve, slot_trials: int = 8) -> tuple[float, float, int]:
    """Shares of the gain (in speed) made in the first and in the last quarter of the trials, and how many steps after
    the first slot are jumps of more than 20 %."""
    speed = 1 / np.asarray(curve.best)
    whole = speed[-1] - speed[0]
    first, last = math.ceil(curve.trials / 4), curve.trials - math.ceil(curve.trials / 4)
    later = speed[min(slot_trials, curve.trials) :]
    jumps = int(np.sum(later[1:] > (1 + JUMP) * later[:-1]))
    return float((speed[first] - speed[0]) / whole), float((speed[-1] - speed[last]) / whole), jumps
