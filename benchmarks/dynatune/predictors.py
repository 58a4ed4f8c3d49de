"""Compares two predictors of an operator's gain: the forecast from its own curve, and its distance to its relatives.

For every slot of every recorded operator: the relative fall of its latency in the slot, times the number of slots
before it plus one (so that stages compare), averaged over thirds of the slots ordered by one predictor. Relatives are
taken at the operator's own number of trials. A good predictor has a rising row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.dynatune.plotting import panels, save
from benchmarks.dynatune.replays import Study
from slipstream.belief import Belief
from slipstream.schedulers.potential import potential, speeds_of
from slipstream.schedulers.replay import RecordedCurve
from slipstream.schedulers.types import OperatorState

STAGES = {"1-3": (1, 3), "4-7": (4, 7), "8+": (8, math.inf)}


@dataclass(frozen=True)
class Slot:
    slots: int
    gained: float
    forecast: float
    potential: float


PREDICTORS: dict[str, Callable[[Slot], float]] = {
    "forecast from its own curve": lambda slot: slot.forecast,
    "potential: distance to its fastest relative": lambda slot: slot.potential,
}


def make(study: Study) -> list[Path]:
    slots = observe(study)
    figure, axes = panels(list(PREDICTORS))
    rows: list[tuple[object, ...]] = []
    for name, axis in axes.items():
        for at, (stage, (least, most)) in enumerate(STAGES.items()):
            here = [slot for slot in slots if least <= slot.slots <= most]
            means = by_thirds(here, PREDICTORS[name])
            rows += [(name, stage, third, len(here), mean) for third, mean in zip("123", means, strict=True)]
            axis.bar([at + 0.25 * (third - 1) for third in range(3)], means, 0.23, color=["0.8", "0.55", "#10305a"])
        axis.set_xticks(range(len(STAGES)), list(STAGES))
        axis.set(xlabel="slots behind; bars: lowest to highest third", ylabel="share gained x (slots + 1)")
    return save(figure, study.figures, "predictors", ("predictor", "slots", "third", "observations", "gained"), rows)


def observe(study: Study) -> list[Slot]:
    found = []
    for recording in study.recordings:
        belief = Belief(peak_flops=recording.peak_flops, slot_trials=study.slot_trials)
        curves = recording.replayable()
        for slots in range(1, max(curve.trials for curve in curves) // study.slot_trials):
            states = {curve.key: _state(curve, slots * study.slot_trials) for curve in curves}
            speeds = speeds_of(states.values())
            for curve in curves:
                now, then = slots * study.slot_trials, (slots + 1) * study.slot_trials
                if then <= curve.trials and math.isfinite(curve.best[now]):
                    gained = (1 - curve.best[then] / curve.best[now]) * (slots + 1)
                    ahead = belief.forecast(curve.key, curve.best[: now + 1], curve.flops).latency_reduction
                    found.append(Slot(slots, gained, ahead, potential(states[curve.key], speeds)))
    return found


def by_thirds(slots: Sequence[Slot], predictor: Callable[[Slot], float]) -> list[float]:
    """Mean gain of the slots with the lowest, middle and highest predictions."""
    order = np.argsort([predictor(slot) for slot in slots], kind="stable")
    gained = np.array([slot.gained for slot in slots])
    return [float(gained[part].mean()) if part.size else 0.0 for part in np.array_split(order, 3)]


def _state(curve: RecordedCurve, trials: int) -> OperatorState:
    history = curve.best[: min(trials, curve.trials) + 1]
    return OperatorState(curve.key, curve.weight, curve.flops, history, similar=curve.similar)
