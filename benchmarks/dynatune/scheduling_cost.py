"""The cost of scheduling: CPU seconds of a decision beside the seconds of a slot (the paper's figure 12).

The figure depends on the machine it is made on. `emcee` is DynaTune with the paper's sampler.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from benchmarks.dynatune.plotting import legend, panels, save
from benchmarks.dynatune.replays import LABELS, Study, policy
from slipstream.schedulers import OperatorState, Scheduler
from slipstream.schedulers.replay import replay
from slipstream.schedulers.ucb import UCB

POLICIES = ("sequential", "random", "round_robin", "gradient", "dynatune", "emcee")
_MOST_SLOTS = 64


class Timed:
    """A policy that notes what each of its decisions took."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.seconds: list[float] = []

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        started = time.thread_time()
        picked = self.scheduler.pick(operators, slot)
        self.seconds.append(time.thread_time() - started)
        return picked


def make(study: Study) -> list[Path]:
    figure, axes = panels(["mean slot"])
    (axis,) = axes.values()
    tuning = slot_seconds(study)
    rows = [(name, tuning, (cost := decision_seconds(study, name)), cost / tuning) for name in POLICIES]
    labels = [f"{LABELS.get(name, 'DynaTune, emcee')}: {share:.2%}" for name, _, _, share in rows]
    axis.barh(labels, tuning, color="0.8", label="search, build and run")
    axis.barh(labels, [row[2] for row in rows], left=tuning, color="#10305a", label="scheduling")
    axis.invert_yaxis()
    axis.set_xlabel("time per slot, s")
    legend(figure, axes)
    return save(figure, study.figures, "scheduling_cost", ("policy", "tuning_s", "scheduling_s", "share"), rows)


def slot_seconds(study: Study) -> float:
    """Seconds of tuning in a slot, on average over all curves."""
    curves = [curve for recording in study.recordings for curve in recording.replayable()]
    slots = sum(math.ceil(curve.trials / study.slot_trials) for curve in curves)
    return sum(curve.seconds[-1] for curve in curves) / slots


def decision_seconds(study: Study, name: str) -> float:
    """CPU seconds of a decision, on average."""
    decisions: list[float] = []
    for recording in study.recordings:
        curves = recording.replayable()
        if name == "emcee":
            scheduler: Scheduler = UCB(
                seed=0, slot_trials=study.slot_trials, peak_flops=recording.peak_flops, sampler="emcee"
            )
        else:
            scheduler = policy(name, curves, recording.peak_flops, 0, study.slot_trials)
        timed = Timed(scheduler)
        replay(timed, curves, study.slot_trials, max_slots=_MOST_SLOTS)
        decisions += timed.seconds
    return mean(decisions)
