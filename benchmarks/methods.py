"""Both methods, each with and without the other, beside MetaSchedule as its users run it (hours).

Sides are {evolutionary search, diffusion} x {gradient, DynaTune}: same measurer, same prepared model, same sketches
(our own for all sides, or stock ones for all). The stock corner, evolutionary search with the gradient scheduler, has
rounds of 64 and, because that is fairer to it, also of 16. A run ends after `--budget` or when operators have had
`--trials-per-operator` on average, and is a process of its own on cores of its own (`--lanes` at a time).

Afterwards every program that any run ever held as the best of an operator is timed again, all of one operator in turns,
on a machine that does nothing else. Curves are computed from these times, whatever the runs believed. Whole models with
the last programs of each run are compared in turns.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

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
_EVOLUTION = {"population": 512, "generations": 4, "patience_trials": 1_000_000}
SIDES: Mapping[str, Mapping[str, Any]] = {
    "gradient, evolution 64": {
        "scheduler": "gradient",
        "search": "evolutionary",
        "cost": "metaschedule",
        "settings": {**_EVOLUTION, "slot_trials": 64},
    },
    "gradient, evolution 16": {
        "scheduler": "gradient",
        "search": "evolutionary",
        "cost": "metaschedule",
        "settings": {**_EVOLUTION, "slot_trials": 16},
    },
    "dynatune, evolution 16": {
        "scheduler": "dynatune",
        "search": "evolutionary",
        "cost": "metaschedule",
        "settings": {**_EVOLUTION, "slot_trials": 16},
    },
    "gradient, diffusion 8": {"scheduler": "gradient", "settings": {"patience_trials": 1_000_000}},
    "dynatune, diffusion 8": {"settings": {"patience_trials": 1_000_000}},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--sketches", nargs="+", default=["own"], choices=["own", "stock"])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", default="20m")
    parser.add_argument("--trials-per-operator", type=int, default=200, help="on average; ends a run before its budget")
    parser.add_argument("--lanes", type=int, default=1, help="runs at a time, each on as many cores")
    parser.add_argument("--retimings", type=int, default=12, help="samples of each program, in turns")
    parser.add_argument("--rounds", type=int, default=12, help="of the comparison of whole models")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for model in options.models:
        for sketches in options.sketches:
            folder = options.work / f"{model}-{sketches}"
            runs = tune_all(model, sketches, folder, options)
            with on_cores(_lanes(options.lanes)[0]):  # programs are for as many threads as a run had cores
                held = HeldPrograms.of(model, runs, own_sketches=sketches == "own")
                found = {
                    "operators": held.operators,
                    "seconds": held.time_again(options.retimings, options.seed),
                    "runs": [
                        {"side": side, "seed": seed, **ended.to_json(), "steps": held.steps(ended)}
                        for (side, seed), ended in runs.items()
                    ],
                }
                paths = {f"{side}, seed {seed}": ended.directory.model for (side, seed), ended in runs.items()}
                found["whole"] = compare_artifacts(model, paths, folder, processes=2, rounds=options.rounds)
            yield f"{model}, {sketches} sketches", found


def tune_all(
    model: str, sketches: str, folder: Path, options: argparse.Namespace
) -> dict[tuple[str, int], EndedSession]:
    """All runs of one model, by side and seed; one that exists is not repeated."""
    lanes: SimpleQueue[Sequence[int]] = SimpleQueue()
    for cores in _lanes(options.lanes):
        lanes.put(cores)
    wanted = [(side, seed) for seed in range(options.seed, options.seed + options.seeds) for side in options.sides]
    limits = {"budget": parse_duration(options.budget), "trials": options.trials_per_operator * _operators(model)}

    def tune(one: tuple[str, int]) -> EndedSession:
        side, seed = one
        how = json.loads(json.dumps(SIDES[side]))
        if sketches == "stock":
            how["settings"]["without"] = ["own_sketches"]
        cores = lanes.get()
        try:
            name = f"{side.replace(', ', '-').replace(' ', '-')}-{seed}"
            return tune_apart(f"zoo:{model}", folder / name, cores=cores, seed=seed, **how, **limits)
        finally:
            lanes.put(cores)

    with ThreadPoolExecutor(options.lanes) as pool:
        return dict(zip(wanted, pool.map(tune, wanted), strict=True))


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """With this process and those it starts on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _lanes(count: int) -> list[list[int]]:
    """The cores of this process in equal shares."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // count
    return [cores[lane * share : (lane + 1) * share] for lane in range(count)]


def _operators(model: str) -> int:
    from benchmarks.candidates import operators_of

    return len(operators_of(model, resolve_target("cpu")))


if __name__ == "__main__":
    run(__name__)
