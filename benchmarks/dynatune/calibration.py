"""Calibration: whether 90 % intervals one slot ahead contain 90 % of the outcomes, by stage of tuning."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

from benchmarks.dynatune.plotting import panels, save
from benchmarks.dynatune.replays import Study
from slipstream.belief import Belief

# A forecast's stage is the number of slots behind it: name -> up to how many.
STAGES = {"1": 1, "2": 2, "3-4": 4, "5-8": 8, "9+": math.inf}
_EXACT = 1e-9


def make(study: Study) -> list[Path]:
    hits = inside(study)
    figure, axes = panels(["90 % intervals one slot ahead"])
    (axis,) = axes.values()
    rows = []
    for stage in (*STAGES, "all"):
        flags = [hit for at, hit in hits if stage in (at, "all")]
        if flags:
            rows.append((stage, len(flags), sum(flags) / len(flags), *wilson(sum(flags), len(flags))))
    share = [row[2] for row in rows]
    below, above = [s - row[3] for s, row in zip(share, rows, strict=True)], [r[4] - r[2] for r in rows]
    axis.errorbar([row[0] for row in rows], share, [below, above], color="#10305a", marker="o", linestyle="", capsize=3)
    axis.axhline(0.9, color="0.6", linewidth=0.8, linestyle="--")
    axis.set_ylim(0, 1.02)
    axis.set(xlabel="slots behind the forecast", ylabel="share of outcomes inside")
    return save(figure, study.figures, "calibration", ("slots", "forecasts", "inside", "low", "high"), rows)


def inside(study: Study) -> list[tuple[str, bool]]:
    """For every forecast its stage and whether the outcome lay in its interval."""
    hits = []
    for recording in study.recordings:
        belief = Belief(peak_flops=recording.peak_flops, slot_trials=study.slot_trials)
        for curve in recording.replayable():
            for slots in range(1, curve.trials // study.slot_trials):
                now, then = slots * study.slot_trials, (slots + 1) * study.slot_trials
                if math.isfinite(curve.best[now]):
                    ahead = belief.forecast(curve.key, curve.best[: now + 1], curve.flops)
                    outcome = ahead.best * curve.best[now] / curve.best[then]
                    hit = ahead.low * (1 - _EXACT) <= outcome <= ahead.high * (1 + _EXACT)
                    hits.append((_stage(slots), hit))
    return hits


def _stage(slots: int) -> str:
    return next(stage for stage, most in STAGES.items() if slots <= most)


def wilson(hits: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share. Slots of one operator are not independent, so it is somewhat too narrow."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
