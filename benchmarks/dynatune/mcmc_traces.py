"""The ensemble's walkers on their way through the posterior, and how often they move (the paper's figure 19).

The traces are those of the curve of `curve_fitting`; the acceptance fraction is a mean over operators.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.dynatune.curve_fitting import clearest_jump
from benchmarks.dynatune.curves import Recording
from benchmarks.dynatune.plotting import panels, save
from benchmarks.dynatune.replays import Study
from slipstream.belief.curves import family
from slipstream.belief.ensemble import STEPS, WALKERS, sample
from slipstream.belief.observations import observe, performance
from slipstream.belief.posterior import Posterior
from slipstream.schedulers.replay import RecordedCurve

_OPERATORS = 24
_EVERY = 5


def make(study: Study) -> list[Path]:
    posterior = _posterior(*clearest_jump(study.recordings), study.slot_trials)
    # All that was sampled, in the order of the steps.
    drawn = sample(posterior, np.random.default_rng(0), kept=WALKERS * STEPS)
    chain = drawn.theta.reshape(STEPS, WALKERS, -1)
    accepted = acceptance(study)
    parameters = posterior.family.parameters
    figure, axes = panels(parameters)
    for axis, name, values in zip(axes.values(), parameters, np.moveaxis(chain, 2, 0), strict=True):
        axis.plot(values, color="#10305a", alpha=0.4, linewidth=0.5)
        axis.set(xlabel="step", ylabel=f"{name} (no unit)")
    figure.suptitle(
        f"{WALKERS} walkers; acceptance {drawn.acceptance:.2f} here, "
        f"{mean(accepted):.2f} on average over {len(accepted)} operators",
        fontsize=8,
    )
    rows = [
        (step, walker, drawn.acceptance, mean(accepted), *map(float, chain[step, walker]))
        for step in range(0, STEPS, _EVERY)
        for walker in range(WALKERS)
    ]
    header = ("step", "walker", "acceptance", "mean_acceptance", *parameters)
    return save(figure, study.figures, "mcmc_traces", header, rows)


def acceptance(study: Study) -> list[float]:
    """The ensemble's acceptance fraction half-way through an even choice of curves."""
    pairs = [(r, curve) for r in study.recordings for curve in r.replayable() if curve.trials >= 2]
    chosen = [pairs[int(i)] for i in np.unique(np.linspace(0, len(pairs) - 1, _OPERATORS).astype(int))] if pairs else []
    rng = np.random.default_rng(0)
    fractions = []
    for recording, curve in chosen:
        half = RecordedCurve(curve.key, curve.weight, curve.flops, [], curve.best[: curve.trials // 2 + 1])
        if np.isfinite(half.best[-1]):
            fractions.append(sample(_posterior(recording, half, study.slot_trials), rng).acceptance)
    return fractions


def _posterior(recording: Recording, curve: RecordedCurve, slot_trials: int) -> Posterior:
    share = performance(curve.best, curve.flops, recording.peak_flops)
    return Posterior(family("log_power"), observe(share, slot_trials))
