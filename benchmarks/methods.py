"""Both methods, each with and without the other, beside MetaSchedule as its users run it (hours).

Sides are {evolutionary search, diffusion} x {gradient, DynaTune}: same measurer, same prepared model, same sketches
(our own for all sides, or stock ones for all). Evolutionary search has rounds of 64 and also of 16. A run ends after
`--budget` or when operators have had `--trials-per-operator` on average, and is a process of its own on cores of its
own (`--lanes` at a time).

Afterwards every program that any run ever held as the best of an operator is timed again, all of one operator in turns,
on a machine that does nothing else. Curves are computed from these times, whatever the runs believed. Whole models with
the last programs of each run are compared in turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.lanes import in_lanes, lanes_argument, on_cores, shares
from benchmarks.methods_table import markdown, numbers, picture
from benchmarks.runner import run
from slipstream.machine.target import resolve_target
from slipstream.session.budget import parse_duration
from slipstream.tvm_bridge.imports import import_tvm_without_torch

import_tvm_without_torch()

from benchmarks.ended_session import EndedSession, tune_apart  # noqa: E402
from benchmarks.held_programs import HeldPrograms  # noqa: E402
from benchmarks.rivals.rounds import compare_artifacts  # noqa: E402

__all__ = ["arguments", "markdown", "measure", "numbers", "picture"]

QUICK = {
    "models": ["tiny_cnn"],
    "budget": "12s",
    "seeds": 1,
    "sides": ["gradient, evolution 16", "dynatune, diffusion 8"],
    "retimings": 3,
    "rounds": 3,
}
MODELS = ("squeezenet1_1", "mobilenet_v2", "resnet18", "transformer_encoder")
_METASCHEDULE: Mapping[str, Any] = {"search": "evolutionary", "cost": "metaschedule"}
_EVOLUTION = {"population": 512, "generations": 4, "patience_trials": 1_000_000}
_SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "evolution 64": {**_METASCHEDULE, "settings": {**_EVOLUTION, "slot_trials": 64}},
    "evolution 16": {**_METASCHEDULE, "settings": {**_EVOLUTION, "slot_trials": 16}},
    "diffusion 8": {"settings": {"patience_trials": 1_000_000}},
}
SIDES: Mapping[str, Mapping[str, Any]] = {
    f"{scheduler}, {name}": {"scheduler": scheduler, **search}
    for name, search in _SEARCHES.items()
    for scheduler in ("gradient", "dynatune")
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--sketches", nargs="+", default=["own"], choices=["own", "stock"])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", default="20m")
    parser.add_argument("--trials-per-operator", type=int, default=200, help="on average; ends a run before its budget")
    lanes_argument(parser)
    parser.add_argument("--retimings", type=int, default=12, help="samples of each program, in turns")
    parser.add_argument("--retiming-lanes", type=int, default=1, help="of which each times other operators' programs")
    parser.add_argument("--rounds", type=int, default=12, help="of the comparison of whole models")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    # All runs first, so that no lane waits for the last run of a model.
    sessions = tune_all(options)
    lanes = shares(options.lanes)
    for model, sketches in sessions:
        folder, runs = _folder(options, model, sketches), sessions[model, sketches]
        with on_cores(lanes[0]):  # programs are for as many threads as a run had cores
            held = HeldPrograms.of(model, runs, own_sketches=sketches == "own", target=resolve_target("cpu"))
            found = {
                "operators": held.operators,
                "seconds": held.time_again(options.retimings, options.seed, lanes[: options.retiming_lanes]),
                "runs": [
                    {"side": side, "seed": seed, **ended.to_json(), "steps": held.steps(ended)}
                    for (side, seed), ended in runs.items()
                ],
            }
            paths = {f"{side}, seed {seed}": ended.directory.model for (side, seed), ended in runs.items()}
            found["whole"] = compare_artifacts(model, paths, folder, processes=2, rounds=options.rounds)
        yield f"{model}, {sketches} sketches", found


def tune_all(options: argparse.Namespace) -> dict[tuple[str, str], dict[tuple[str, int], EndedSession]]:
    """All runs, by model and sketches, then by side and seed; one that exists is not repeated."""
    limits = {
        model: {"budget": parse_duration(options.budget), "trials": options.trials_per_operator * _operators(model)}
        for model in options.models
    }
    seeds = range(options.seed, options.seed + options.seeds)
    wanted = list(product(options.models, options.sketches, seeds, options.sides))

    def tune(one: tuple[str, str, int, str], cores: Sequence[int]) -> EndedSession:
        model, sketches, seed, side = one
        how = json.loads(json.dumps(SIDES[side]))
        if sketches == "stock":
            how["settings"]["without"] = ["own_sketches"]
        folder = _folder(options, model, sketches) / f"{side.replace(', ', '-').replace(' ', '-')}-{seed}"
        return tune_apart(f"zoo:{model}", folder, cores=cores, seed=seed, **how, **limits[model])

    found: dict[tuple[str, str], dict[tuple[str, int], EndedSession]] = {}
    for (model, sketches, seed, side), ended in zip(wanted, in_lanes(options.lanes, tune, wanted), strict=True):
        found.setdefault((model, sketches), {})[side, seed] = ended
    return found


def _folder(options: argparse.Namespace, model: str, sketches: str) -> Path:
    return Path(options.work, f"{model}-{sketches}")


def _operators(model: str) -> int:
    from benchmarks.candidates import operators_of

    return len(operators_of(model, resolve_target("cpu")))


if __name__ == "__main__":
    run(__name__)
