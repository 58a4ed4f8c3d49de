"""Time to equal latency against the published code of Ansor and code diffusion (3 hours a model and seed).

The artifact's tuners (`benchmarks/originals/build.sh` builds them), MetaSchedule's algorithm and ours tune the same
ONNX model from scratch, each in a process of its own, one after the other or several at a time on cores of their own
(`--lanes`): the artifact's at the settings its authors state, ended at a limit of wall-clock time. Their models are
built by their compiler, ours by ours, and all of them and ONNX Runtime are called as functions in turns, with the same
threads. A tuning that is in the work folder is not done again. See docs/originals.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lanes import in_lanes, lanes_argument, on_cores, shares
from benchmarks.originals.picture import picture
from benchmarks.originals.settings import COMMIT, KNOWN_TO_LLVM_14, MEASURES_PER_ROUND, SIDES, TRIALS_PER_TASK
from benchmarks.originals.table import METASCHEDULE, OURS, markdown, numbers
from slipstream.errors import SlipstreamError

__all__ = ["QUICK", "arguments", "markdown", "measure", "numbers", "picture"]

_SIDES = (*SIDES, METASCHEDULE, OURS)
QUICK = {
    "models": ["tiny_cnn"],
    "trials": 8,
    "measures_per_round": 4,
    "population": 32,
    "limit": "180s",
    "budget": "10s",
    "processes": 1,
    "rounds": 3,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--build", type=Path, help="folder that benchmarks/originals/build.sh built the artifact in")
    parser.add_argument("--models", nargs="+", default=["resnet18", "mobilenet_v2"], help="of the zoo")
    parser.add_argument("--sides", nargs="+", default=list(_SIDES), choices=_SIDES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trials", type=int, default=TRIALS_PER_TASK, help="an operator on average, theirs")
    parser.add_argument("--measures-per-round", type=int, default=MEASURES_PER_ROUND, help="theirs")
    parser.add_argument(
        "--their-target", help='TVM target of the artifact ["llvm -mcpu=" and this CPU; its authors\' is "llvm" alone]'
    )
    parser.add_argument("--limit", default="40m", help="of a tuning by the artifact or by MetaSchedule's algorithm")
    parser.add_argument("--budget", default="10m", help="of ours")
    parser.add_argument("--processes", type=int, default=5, help="of each model, one after the other")
    parser.add_argument("--rounds", type=int, default=12, help="in each of them")
    lanes_argument(parser)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--tune-only", action="store_true", help="tune what the work folder lacks, compare nothing")
    part.add_argument("--compare-only", action="store_true", help="compare what the work folder has, tune nothing")
    parser.set_defaults(population=0)  # of the artifact's searches: its own


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.rivals.models import model_files

    if options.build is None:
        raise SlipstreamError("--build is missing: name the folder that benchmarks/originals/build.sh built into")
    files = {model: model_files(model, options.work / model / "files") for model in options.models}
    cores = shares(options.lanes)[0]
    tuned = tune_all(files, options)
    if options.tune_only:
        return
    for model, runs in tuned.items():
        with on_cores(cores):  # as many as every tuning had
            compared = compare_models(runs, files[model], options, options.work / model, len(cores))
        told = {name: {**run, "path": ""} for name, run in runs.items()}
        yield model, {"commit": COMMIT, "threads": len(cores), "runs": told, "compared": compared}


def tune_all(files: Mapping[str, Mapping[str, str]], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Model -> its runs by side and seed. Sides that take longest are started first."""
    seeds = range(options.seed, options.seed + options.seeds)
    wanted = [
        (model, side, seed) for side in sorted(options.sides, key=_SIDES.index) for model in files for seed in seeds
    ]
    if options.compare_only:
        wanted = [one for one in wanted if is_tuned(run_folder(options, *one))]
        for model in set(files) - {model for model, _, _ in wanted}:
            where = options.work / model
            raise SlipstreamError(f"nothing has been tuned in {where}: leave --compare-only out, or name its --work")

    def tune(one: tuple[str, str, int], cores: Sequence[int]) -> dict[str, Any]:
        model, side, seed = one
        return tune_side(side, seed, model, files[model], options, cores)

    found: dict[str, dict[str, Any]] = {model: {} for model in files}
    for (model, side, seed), run in zip(wanted, in_lanes(options.lanes, tune, wanted), strict=True):
        found[model][f"{side} {seed}"] = run
    return found


def is_tuned(folder: Path) -> bool:
    """Whether a tuning in this folder has been begun by us, or ended by the artifact."""
    from benchmarks.originals.tuned import RESULT
    from slipstream.session.directory import SESSION

    return any((folder / name).exists() for name in (RESULT, SESSION))


def run_folder(options: argparse.Namespace, model: str, side: str, seed: int) -> Path:
    return Path(options.work, model, f"{side}-{seed}")


def tune_side(
    side: str, seed: int, model: str, files: Mapping[str, str], options: argparse.Namespace, cores: Sequence[int]
) -> dict[str, Any]:
    """One tuning: its curve, the seconds it took, and the path of its model."""
    from benchmarks.ended_session import tune_apart
    from benchmarks.originals.artifact import BuiltArtifact
    from benchmarks.originals.tuned import tune_original
    from slipstream.session.budget import parse_duration

    folder = run_folder(options, model, side, seed)
    if side in SIDES:
        settings = {"trials": options.trials, "measures_per_round": options.measures_per_round}
        run = tune_original(
            BuiltArtifact(options.build),
            side,
            model,
            Path(files["model"]),
            folder,
            seed=seed,
            limit=parse_duration(options.limit),
            cores=cores,
            settings={**settings, "population": options.population, "target": options.their_target or native_target()},
        )
        return {**run, "side": side, "path": str(folder / "model.so")}
    if side == METASCHEDULE:
        how: dict[str, Any] = {"preset": "metaschedule", "settings": {"most_trials": options.trials}}
        session = tune_apart(files["source"], folder, cores=cores, seed=seed, budget=options.limit, **how)
    else:
        session = tune_apart(files["source"], folder, cores=cores, seed=seed, budget=options.budget)
    tuning = session.seconds - session.finishing
    tasks = [
        {
            "name": one.name,
            "weight": one.weight,
            "flops": one.flops,
            "seconds": one.best if math.isfinite(one.best) else None,
            "rounds": len(one.slots),
        }
        for one in session.history.operators.values()
    ]
    return {
        **session.to_json(),
        "tasks": tasks,
        "side": side,
        "seed": seed,
        "tuning_seconds": round(tuning, 2),
        "path": str(session.directory.model),
    }


def native_target() -> str:
    """TVM's target for this CPU, in the words of the artifact's TVM."""
    from slipstream.machine.target import resolve_target

    target = resolve_target()
    without = ",".join(f"-{feature}" for feature in target.disabled)
    return f"llvm -mcpu={KNOWN_TO_LLVM_14.get(target.cpu, target.cpu)}" + (f" -mattr={without}" if without else "")


def compare_models(
    runs: Mapping[str, Mapping[str, Any]],
    files: Mapping[str, str],
    options: argparse.Namespace,
    folder: Path,
    threads: int,
) -> dict[str, Any]:
    """All models and ONNX Runtime in turns."""
    from benchmarks.originals.contender import start
    from benchmarks.rivals.rounds import compare

    artifacts = {name: run["path"] for name, run in runs.items()}
    job = {**files, "threads": threads, "work": str(folder), "artifacts": artifacts}
    jobs: dict[str, dict[str, Any]] = {"onnxruntime": job}
    for name, run in runs.items():
        theirs = SIDES.get(run["side"])
        jobs[name] = {**job, "tree": theirs.tree, "build": str(options.build)} if theirs else job
    return compare(list(jobs), jobs, processes=options.processes, rounds=options.rounds, seed=options.seed, start=start)
