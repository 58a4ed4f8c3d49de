"""All figures and the table, from the recorded curves: `python -m benchmarks.dynatune`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.dynatune import (
    ablation,
    action_functions,
    against_dynamic,
    against_gradient,
    against_sequential,
    against_static,
    calibration,
    curve_fitting,
    mcmc_traces,
    predictors,
    regret,
    scheduling_cost,
    summary,
)
from benchmarks.dynatune.command import run
from benchmarks.dynatune.replays import Study

COMMANDS = (
    against_sequential,
    against_static,
    against_dynamic,
    action_functions,
    against_gradient,
    ablation,
    regret,
    calibration,
    curve_fitting,
    mcmc_traces,
    predictors,
    scheduling_cost,
    summary,
)


def make(study: Study) -> list[Path]:
    return [path for command in COMMANDS for path in command.make(study)]


if __name__ == "__main__":
    run(make, __doc__)
