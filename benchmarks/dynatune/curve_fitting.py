"""A recorded curve with a jump, fitted piece by piece (the paper's figure 13).

Shown is the operator whose last change point leaves the most trials on both sides, and the forecast of one slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.dynatune.curves import Recording
from benchmarks.dynatune.plotting import panels, save
from benchmarks.dynatune.replays import Study
from slipstream.belief import Belief
from slipstream.belief.change_points import segments
from slipstream.belief.curves import family
from slipstream.belief.least_squares import fit
from slipstream.belief.observations import observe, performance
from slipstream.belief.posterior import Posterior
from slipstream.schedulers.replay import RecordedCurve


def make(study: Study) -> list[Path]:
    recording, curve = clearest_jump(study.recordings)
    share = performance(curve.best, curve.flops, recording.peak_flops)
    names = {operator.key: operator.name for operator in recording.operators}
    figure, axes = panels([f"{recording.model}: {names[curve.key]}"])
    (axis,) = axes.values()
    axis.plot(share, color="0.55", linewidth=2.5, drawstyle="steps-post", label="best so far")
    starts = segments(share)
    fitted = np.full(len(share), np.nan)
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(share)], strict=True)):
        fitted[start:end] = _fit(share[:end], start, study.slot_trials)
        axis.plot(
            range(start, end), fitted[start:end], color="#10305a", linestyle="--", label=None if number else "log power"
        )
        if number:
            axis.axvline(start - 0.5, color="#c0562c", linewidth=0.8, label="change point" if number == 1 else None)
    belief = Belief(peak_flops=recording.peak_flops, slot_trials=study.slot_trials)
    ahead = belief.forecast(curve.key, curve.best, curve.flops)
    after = len(share) - 1 + study.slot_trials
    axis.errorbar(
        [after], [ahead.mean], [[ahead.mean - ahead.low], [ahead.high - ahead.mean]],
        color="#6a9a3f", marker="o", markersize=3, capsize=3, label="forecast, 90 %",
    )  # fmt: skip
    axis.set(xlabel="trial", ylabel="performance, share of peak FLOP/s")
    axis.legend(loc="lower right")
    rows = [(trial, float(seen), float(value)) for trial, (seen, value) in enumerate(zip(share, fitted, strict=True))]
    return save(figure, study.figures, "curve_fitting", ("trial", "share_of_peak", "fitted"), rows)


def clearest_jump(recordings: Sequence[Recording]) -> tuple[Recording, RecordedCurve]:
    """The curve with the most trials before and after its last change point; a curve without one has none before."""

    def room(pair: tuple[Recording, RecordedCurve]) -> tuple[int, int]:
        recording, curve = pair
        start = segments(performance(curve.best, curve.flops, recording.peak_flops))[-1]
        return min(start, curve.trials - start), curve.trials

    return max(((recording, curve) for recording in recordings for curve in recording.replayable()), key=room)


def _fit(share: np.ndarray, start: int, slot_trials: int) -> np.ndarray:
    """The least squares curve of the last segment of `share`, at its trials."""
    if share[-1] <= 0:
        return share[start:]
    posterior = Posterior(family("log_power"), observe(share, slot_trials))
    theta = fit(posterior, (posterior.low + posterior.high) / 2)
    trials = np.log(np.arange(start, len(share)) + 1.0)
    return np.asarray(share[-1] * posterior.family.value(theta, trials, posterior.seen.log_end))
