"""All figures and the table from the recorded curves, or those named: `python -m benchmarks.dynatune [NAME ...]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.dynatune import (
    against_chameleon,
    calibration,
    challenges,
    claims,
    curve_fitting,
    left_out,
    mcmc_traces,
    scheduling_cost,
    summary,
    transformation_space,
)
from benchmarks.dynatune.course import CONVERGENCE, convergence, regret
from benchmarks.dynatune.curves import CURVES, read_all
from benchmarks.dynatune.replays import Study
from benchmarks.runner import RESULTS
from slipstream.errors import SlipstreamError
from slipstream.session.settings import Settings

FIGURES = Path(__file__).parent / "figures"
PARTS: dict[str, Callable[[Study], list[Path]]] = {
    **{name: partial(convergence, name=name) for name in CONVERGENCE},
    "regret": regret,
    "calibration": calibration.make,
    "curve_fitting": curve_fitting.make,
    "mcmc_traces": mcmc_traces.make,
    "scheduling_cost": scheduling_cost.make,
    "summary": summary.make,
    "left_out": left_out.make,
    "cost_and_gain": challenges.cost_and_gain,
    "transformation_space": transformation_space.make,
    "tuning_curves": challenges.tuning_curves,
    "against_chameleon": against_chameleon.make,
    "claims": claims.make,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the curves, make what was asked for, and name the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dynatune", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PARTS)} [all]")
    parser.add_argument("--curves", type=Path, default=CURVES, help="folder of recorded curves")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="where figures go")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where tables go")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--slot-trials", type=int, default=Settings().slot_trials)
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.slot_trials < 1:
        parser.error("--seeds and --slot-trials are whole numbers from 1")
    if unknown := set(options.names) - set(PARTS):
        parser.error(f"there is no {unknown.pop()}: choose from {', '.join(PARTS)}")
    try:
        study = Study(
            read_all(options.curves),
            options.figures,
            options.results,
            options.seeds,
            options.slot_trials,
            options.curves,
        )
        for name in options.names or PARTS:
            print(*PARTS[name](study), sep="\n")
    except SlipstreamError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
