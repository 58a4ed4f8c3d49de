"""How much sooner than MetaSchedule's algorithm our compiled model is as fast as its final one (3 hours).

Both sides tune the same prepared model on the same measurer, one after the other, each in a process of its own:
  preset  `--preset metaschedule` with so many trials for every operator, to its end (seed 0),
  ours    `slipstream tune` at its defaults, a session for every budget and seed; the longest for the first seed alone.
Both measure our default programs first and may keep them. Then the model is compiled with the preset's best programs
after some minutes, with the default programs alone, and with the best programs that the preset's search itself found.
These artifacts, those of the sessions and ONNX Runtime run interleaved. Time counts from the start of the
command to the verified artifact: import, preparation, search, training, settling, compiling. A session that exists is
not run again; an interrupted one goes on. Takes 40 minutes a model.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.runner import run
from benchmarks.speedup_picture import picture
from benchmarks.speedup_table import PRESET_OWN, markdown, numbers
from slipstream.errors import SlipstreamError
from slipstream.tvm_bridge.imports import import_tvm_without_torch

import_tvm_without_torch()

from benchmarks.ended_session import EndedSession, tune_apart  # noqa: E402
from benchmarks.rivals.rounds import compare_artifacts  # noqa: E402
from slipstream.artifact.compile import write_artifact  # noqa: E402
from slipstream.frontends import load_model  # noqa: E402
from slipstream.graph.prepare import prepare  # noqa: E402
from slipstream.machine.target import Target, resolve_target  # noqa: E402
from slipstream.program.scheduled import schedule_with  # noqa: E402
from slipstream.session.budget import parse_duration  # noqa: E402
from slipstream.session.history import Trial  # noqa: E402

__all__ = ["arguments", "markdown", "measure", "numbers", "picture"]

QUICK = {"models": ["tiny_cnn"], "trials": 8, "population": 64, "budgets": ["20s"], "rounds": 4, "processes": 1}
MODELS = ("resnet18", "squeezenet1_1", "mobilenet_v2", "transformer_encoder")
PRESET_MINUTES = (1, 3, 10)


Sides = Mapping[str, EndedSession]
"""Name -> a session. The longest ones are "preset" and the first "ours-SEED"; shorter ones have their minutes added."""


def compile_stages(model: Any, prepared: Any, target: Target, sides: Sides, shorter: Sides, work: Path) -> Any:
    """Name -> an artifact, and after how many seconds it was or would have been there."""
    stages: dict[str, Any] = {}

    def write(name: str, seconds: float, best: Mapping[str, Trial]) -> None:
        path = work / "stages" / name.replace(" ", "-")
        programs = {key: preset.program(trial) for key, trial in best.items()}
        shutil.rmtree(path, ignore_errors=True)
        write_artifact(
            model, lambda *_: [prepared], target, path, program=schedule_with(programs, target), threads=target.threads
        )
        stages[name] = {"path": path, "seconds": seconds}

    preset = sides["preset"]
    write("untuned", 0.0, {})
    write(PRESET_OWN, preset.seconds, preset.best(defaults=False))
    for seconds in (60.0 * minutes for minutes in PRESET_MINUTES):
        if seconds < preset.last_slot_end:
            write(f"preset {seconds / 60:g} min", seconds + preset.finishing, preset.best(seconds))
    for name, side in [*shorter.items(), *((f"{name} end", side) for name, side in sides.items())]:
        stages[name] = {"path": side.directory.model, "seconds": side.seconds}
    return stages


def compare(model: str, sides: Sides, shorter: Sides, work: Path, rounds: int, processes: int) -> dict[str, Any]:
    target = resolve_target("cpu")
    loaded = load_model(f"zoo:{model}")
    stages = compile_stages(loaded, prepare(loaded.module, target)[0], target, sides, shorter, work)
    paths = {name: stage["path"] for name, stage in stages.items()}
    blocks = compare_artifacts(model, paths, work, processes=processes, rounds=rounds)
    rows = {
        name: {"seconds": stages[name]["seconds"] if name in stages else None, "blocks": timed}
        for name, timed in blocks.items()
    }
    told = [{name: side.to_json() for name, side in some.items()} for some in (sides, shorter)]
    return {"stages": rows, "sides": told[0], "shorter": told[1]}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument(
        "--seeds", type=int, default=1, help="of ours, but for the longest budget; the preset runs once"
    )
    parser.add_argument("--trials", type=int, default=64, help="for every operator, on the preset's side")
    parser.add_argument("--population", type=int, help="of the preset's search, unless it is MetaSchedule's own")
    parser.add_argument("--budgets", nargs="+", default=["30s", "1m", "3m", "10m"], help="ours, the longest last")
    parser.add_argument("--processes", type=int, default=5, help="of each artifact, one after the other")
    parser.add_argument("--rounds", type=int, default=12, help="in each of them")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    if options.seeds > 1 and len(options.budgets) == 1:
        raise SlipstreamError("the longest budget is for one seed alone: give --budgets more than one, or --seeds 1")
    for model in options.models:
        work = options.work / model
        settings = {"most_trials": options.trials}
        if options.population:
            settings |= {"population": options.population, "slot_trials": options.trials}
        preset: dict[str, Any] = {"preset": "metaschedule", "settings": settings}
        shorter: dict[str, EndedSession] = {}
        sides = {"preset": tune_apart(f"zoo:{model}", work / "preset", seed=0, **preset)}
        for seed in range(options.seed, options.seed + options.seeds):
            name = f"ours-{seed}"
            for budget in options.budgets if seed == options.seed else options.budgets[:-1]:
                ended = tune_apart(f"zoo:{model}", work / f"{name}-{budget}", seed=seed, budget=budget)
                if budget == options.budgets[-1]:
                    sides[name] = ended
                else:
                    shorter[f"{name} {parse_duration(budget) / 60:g} min"] = ended
        yield model, compare(model, sides, shorter, work, options.rounds, options.processes)


if __name__ == "__main__":
    run(__name__)
