"""Distilled priors, leaving one model out: a short session with them, and a short and a long one without (2 hours).

Sessions of the `--training` models are distilled, for each judged model without its own. Then it is tuned with these
priors and without, for `--short`, and without for `--long`; sides alternate, a session at a time, for each seed.
Afterwards every program that any run held as the best of an operator is timed again, all of one operator in turns, and
latencies are computed from these times. Whole compiled models are compared in turns. Sessions may be limited by trials,
default programs included, in place of time: what a shared machine's other work does to the clock is then left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.methods_table import curve, lowest, sides
from benchmarks.runner import run
from benchmarks.spread import by_process, table, with_range
from slipstream.tvm_bridge.imports import import_tvm_without_torch

import_tvm_without_torch()

from benchmarks.ended_session import EndedSession, tune_apart  # noqa: E402
from benchmarks.held_programs import HeldPrograms  # noqa: E402
from benchmarks.rivals.rounds import compare_artifacts  # noqa: E402
from slipstream.diffusion.distilled import SHIPPED, read_priors, write_priors  # noqa: E402
from slipstream.machine.target import resolve_target  # noqa: E402
from slipstream.session.directory import SESSION, SessionDirectory  # noqa: E402
from slipstream.session.distil import distil_stores  # noqa: E402

MODELS = ("squeezenet1_1", "mobilenet_v2", "resnet18", "transformer_encoder")
TRAINING = (*MODELS, "resnet50", "mobilenet_v1", "efficientnet_b0", "bert_base")
WITH, SHORT, LONG = "short, with priors", "short, without", "long, without"
QUICK = {
    "models": ["tiny_cnn"],
    "training": ["tiny_cnn"],
    "training_budget": "16",
    "short": "10",
    "long": "14",
    "seeds": 1,
    "retimings": 3,
    "rounds": 3,
    "keep_own": True,
    "noisy": True,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", default=MODELS, help="to judge")
    parser.add_argument("--training", nargs="*", default=TRAINING)
    parser.add_argument("--target", default="cpu", help="cpu, cpu:haswell for the class avx2, cuda [this CPU]")
    parser.add_argument("--training-budget", default="90s", help="a time, or a number of trials; so are the next two")
    parser.add_argument(
        "--sessions", type=Path, help="folder of finished sessions, named after their models, to distil"
    )
    parser.add_argument("--short", default="30s")
    parser.add_argument("--long", default="2m")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--retimings", type=int, default=12, help="samples of each program, in turns")
    parser.add_argument("--rounds", type=int, default=12, help="of the comparison of whole models")
    parser.add_argument(
        "--keep-own", action="store_true", help="distil the judged model's own session too; no evidence"
    )

    parser.add_argument("--noisy", action="store_true", help="distil trials that others disturbed too")
    parser.add_argument("--ship", action="store_true", help="first distil all sessions into the package's file")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    target = resolve_target(options.target)
    trained = training_sessions(options)
    if options.ship:
        stores = [directory.store for directory in trained.values()]
        write_priors(distil_stores(stores, read_priors(SHIPPED), noisy=options.noisy), SHIPPED)
    for model in options.models:
        folder = options.work / f"{model}{_where(options)}".replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        others = [name for name in trained if name != model or options.keep_own]
        file = folder / "priors.json.gz"
        write_priors(distil_stores([trained[name].store for name in others], {}, noisy=options.noisy), file)
        how: dict[str, dict[str, Any]] = {
            WITH: {**_limit(options.short), "priors": str(file)},
            SHORT: _limit(options.short),
            LONG: _limit(options.long),
        }
        runs: dict[tuple[str, int], EndedSession] = {}
        for seed in range(options.seed, options.seed + options.seeds):
            for side, asked in how.items():
                name = f"{side.replace(', ', '-').replace(' ', '-')}-{seed}"
                runs[side, seed] = _tune(options, model, folder / name, seed=seed, **asked)
        held = HeldPrograms.of(model, runs, own_sketches=True, target=target)
        seconds = held.time_again(options.retimings, options.seed)
        paths = {f"{side}, seed {seed}": ended.directory.model for (side, seed), ended in runs.items()}
        # ONNX Runtime would take its turns on the CPU.
        others_too = ("onnxruntime",) if target.gpu is None else ()
        yield (
            f"{model}{_where(options)}",
            {
                "distilled": others,
                "budgets": {side: options.long if side == LONG else options.short for side in how},
                "operators": held.operators,
                "seconds": seconds,
                "runs": [
                    {"side": side, "seed": seed, **ended.to_json(), "steps": held.steps(ended)}
                    for (side, seed), ended in runs.items()
                ],
                "whole": compare_artifacts(model, paths, folder, processes=2, rounds=options.rounds, others=others_too),
            },
        )


def training_sessions(options: argparse.Namespace) -> dict[str, SessionDirectory]:
    """Sessions to distil by the name of their model: those that exist, or tuned now."""
    if options.sessions is not None:
        return {path.parent.name: SessionDirectory.read(path.parent) for path in options.sessions.glob(f"*/{SESSION}")}
    folder = options.work / f"training{_where(options)}".replace(" ", "-")
    asked = {**_limit(options.training_budget), "seed": options.seed + 1000}
    return {name: _tune(options, name, folder / name, **asked).directory for name in options.training}


def _tune(options: argparse.Namespace, model: str, folder: Path, **asked: Any) -> EndedSession:
    return tune_apart(f"zoo:{model}", folder, target=options.target, **asked)


def _where(options: argparse.Namespace) -> str:
    """What names say of the target, if it is not this CPU."""
    return "" if options.target == "cpu" else f" for {options.target}"


def _limit(text: str) -> dict[str, Any]:
    return {"trials": int(text)} if text.isdecimal() else {"budget": text}


def markdown(parts: Mapping[str, Any]) -> str:
    lines = [
        "Latency is the sum over operators, from times measured again afterwards, also relative to that of the long",
        "session with the same seed; whole compiled models run in turns. Medians over seeds, with ranges.",
        "",
    ]
    rows: list[list[object]] = []
    for name, result in parts.items():
        budgets, best = result["budgets"], lowest(result)
        for side in sides(result):
            own = [run for run in result["runs"] if run["side"] == side]
            ends = [curve(result, run)[-1][1] for run in own]
            rows.append([
                name,
                f"{side} ({budgets[side]})",
                with_range([run["seconds"] for run in own], 0),
                with_range([run["trials"] for run in own], 0),
                with_range([1e3 * end for end in ends], 2),
                with_range([end / best for end in ends]),
                with_range(to_long(result, side)),
                with_range(_whole(result, side)),
            ])  # fmt: skip
    columns = ["model", "session", "s", "trials", "latency, ms", "to best known", "to long", "whole model to long"]
    lines += table(columns, rows)
    distilled = sorted({name for result in parts.values() for name in result["distilled"]})
    lines += ["", f"Distilled, each without the judged model: {', '.join(distilled)}."]
    return "\n".join(lines) + "\n"


def numbers(parts: Mapping[str, Any]) -> dict[str, str]:
    """Latency after a short session, relative to that after a long one without priors."""
    found = {}
    for name, result in parts.items():
        for side in (WITH, SHORT):
            found[f"{name}: {side} to long"] = f"{median(to_long(result, side)):.2f}"
            found[f"{name}: {side}, whole model to long"] = f"{median(_whole(result, side)):.2f}"
    return found


def to_long(result: Mapping[str, Any], side: str) -> list[float]:
    """Latency at the end relative to that of the long session with the same seed."""
    ends = {(run["side"], run["seed"]): curve(result, run)[-1][1] for run in result["runs"]}
    return [end / ends[LONG, seed] for (own, seed), end in ends.items() if own == side]


def _whole(result: Mapping[str, Any], side: str) -> list[float]:
    seeds = sorted({run["seed"] for run in result["runs"]})
    whole = result["whole"]
    return [r for s in seeds for r in by_process(whole[f"{side}, seed {s}"], whole[f"{LONG}, seed {s}"])]


if __name__ == "__main__":
    run(__name__)
