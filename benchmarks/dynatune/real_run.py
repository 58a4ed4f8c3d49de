"""Real sessions instead of replays: one model tuned by different schedulers with the same search and time.

    python -m benchmarks.dynatune.real_run --budget 5m --seeds 3

For each seed all schedulers run in turn, starting with another one each time, so that other load on the machine affects
all of them. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dynatune.command import FIGURES, RESULTS
from benchmarks.dynatune.curves import RecordingError
from benchmarks.dynatune.plotting import band, draw_band, legend, lines, panels, save
from benchmarks.dynatune.replays import LABELS
from slipstream.errors import SlipstreamError
from slipstream.session.budget import parse_duration

SCHEDULERS = ("dynatune", "sequential", "gradient")
_POINTS = 240
_DONE = "run.json"


def tune_all(model: str, seconds: float, seeds: int, work: Path) -> list[dict[str, Any]]:
    """Every scheduler with every seed: latency over time, and what the compiled model takes in the end."""
    runs = []
    for seed in range(seeds):
        turn = seed % len(SCHEDULERS)
        for scheduler in SCHEDULERS[turn:] + SCHEDULERS[:turn]:
            runs.append(_tune(model, seconds, scheduler, seed, work / f"{model}-{seconds:g}s-{scheduler}-{seed}"))
            end = runs[-1]["curve"][-1][1]
            print(f"seed {seed}, {scheduler}: operators {1e3 * end:.3f} ms", flush=True)
    return runs


def _tune(model: str, seconds: float, scheduler: str, seed: int, folder: Path) -> dict[str, Any]:
    done = folder / _DONE
    if done.exists():
        return dict(json.loads(done.read_text()))
    if folder.exists():
        raise RecordingError(f"{folder} was interrupted, and a race against the clock cannot go on: delete it")
    from slipstream.session.tune import tune

    load = os.getloadavg()
    result = tune(f"zoo:{model}", folder, budget=seconds, scheduler=scheduler, search="diffusion", seed=seed)
    if result.reason == "interrupted":
        raise KeyboardInterrupt
    run = {
        "scheduler": scheduler,
        "seed": seed,
        "trials": result.trials,
        "start": result.start_latency,
        "end_to_end": result.end_to_end,
        "elapsed": result.elapsed,
        "split": result.split,
        "load": [load, os.getloadavg()],
        "curve": result.curve,
    }
    done.write_text(json.dumps(run))
    return run


def latency_at(curve: Sequence[Sequence[float]], seconds: float) -> float:
    """The latency known after so many seconds; infinite before the default programs are measured."""
    return next((latency for at, latency in reversed(curve) if at <= seconds), math.inf)


def draw(model: str, seconds: float, runs: Sequence[dict[str, Any]], figures: Path) -> list[Path]:
    figure, axes = panels([f"{model}, tuned for {seconds:g} s"])
    (axis,) = axes.values()
    grid = np.linspace(0, seconds, _POINTS).tolist()
    rows: list[tuple[object, ...]] = []
    for scheduler, line in zip(SCHEDULERS, lines(), strict=False):
        curves = [run["curve"] for run in runs if run["scheduler"] == scheduler]
        points = band([[1e3 * latency_at(curve, t) for t in grid] for curve in curves])
        draw_band(axis, grid, points, LABELS[scheduler], line)
        rows += [(scheduler, t, *point) for t, point in zip(grid, points, strict=True) if math.isfinite(point[0])]
    axis.set_xlabel("wall-clock time, s")
    axis.set_ylabel("sum of operators, ms")
    legend(figure, axes)
    return save(figure, figures, "real_run", ("scheduler", "seconds", "latency_ms", "low_ms", "high_ms"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="a model of the zoo")
    parser.add_argument("--budget", default="5m", help="for each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/dynatune-real"), help="where the sessions are kept")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds is a whole number from 1")
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    try:
        seconds = parse_duration(options.budget)
        runs = tune_all(options.model, seconds, options.seeds, options.work)
        options.results.mkdir(parents=True, exist_ok=True)
        data = options.results / "dynatune_real_run.json"
        data.write_text(json.dumps({"model": options.model, "budget": seconds, "runs": runs}, indent=1) + "\n")
        for path in [data, *draw(options.model, seconds, runs, options.figures)]:
            print(path)
    except KeyboardInterrupt:
        sys.exit("interrupted: delete the run that was under way, then the same command goes on")
    except SlipstreamError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
