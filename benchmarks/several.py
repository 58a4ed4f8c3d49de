"""Several models tuned together, against one after the other in the same time (1 hour).

For each seed the models are tuned together for so many seconds, and each by itself for its share of them: with a store
of its own, and with one store for all, from which the next model begins. Each session is a process of its own and ends
with a verified model; one that exists is not run again. The order of these sides changes from seed to seed. Then, model
by model, the artifacts of all sides and one that was not tuned run in turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.race import race
from benchmarks.runner import run
from benchmarks.spread import table, with_range

QUICK = {
    "models": ["tiny_cnn", "squeezenet1_1"],
    "seconds": 24.0,
    "seeds": 1,
    "rounds": 5,
    "sides": ["together", "one after the other"],
}
TOGETHER, APART, ONE_STORE, UNTUNED = "together", "one after the other", "one after the other, one store", "not tuned"
_SUM = "sum"
SIDES = (APART, ONE_STORE, TOGETHER)


def markdown(data: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for name, result in data.items():
        seeds = list(result["seeds"].values())
        sides = [side for side in SIDES if side in seeds[0]["sessions"]]
        others = [side for side in sides if side != TOGETHER]
        rows = []
        for model in [*seeds[0]["blocks"], _SUM]:
            shown = [f"{1e3 * median(_latency(seed, model, side) for seed in seeds):.2f}" for side in (UNTUNED, *sides)]
            rows.append([model, *shown, *(with_range(_ratios(seeds, model, side)) for side in others)])
        means = [with_range(_mean_ratios(seeds, side)) for side in others]
        rows.append(["geometric mean", *[""] * (1 + len(sides)), *means])
        columns = ["model", *(f"{side}, ms" for side in (UNTUNED, *sides))]
        columns += [f"together to {side}" for side in others]
        lines += ["", f"{name}, {result['seconds']:.0f} s in all, {len(seeds)} seeds:", "", *table(columns, rows), ""]
        for side in sides:
            seconds, trials = (median(_used(seed, side, what) for seed in seeds) for what in ("seconds", "trials"))
            lines.append(f"- {side}: {trials:.0f} trials in {seconds:.0f} s")
    return "\n".join(lines) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, result in data.items():
        seeds = list(result["seeds"].values())
        found[f"{name}: seconds"] = f"{result['seconds']:.0f}"
        for side in (side for side in (APART, ONE_STORE) if side in seeds[0]["sessions"]):
            found[f"{name}: sum to {side}"] = f"{median(_ratios(seeds, _SUM, side)):.3f}"
            found[f"{name}: mean to {side}"] = f"{median(_mean_ratios(seeds, side)):.3f}"
    return found


def _latency(seed: Mapping[str, Any], model: str, side: str) -> float:
    """Seconds of a run of a model, or of one run of each."""
    if model == _SUM:
        return sum(_latency(seed, one, side) for one in seed["blocks"])
    return median(seed["blocks"][model][side])


def _ratios(seeds: list[Any], model: str, side: str) -> list[float]:
    return [_latency(seed, model, TOGETHER) / _latency(seed, model, side) for seed in seeds]


def _mean_ratios(seeds: list[Any], side: str) -> list[float]:
    """Over the models, for each seed."""
    return [geometric_mean(_ratios([seed], model, side)[0] for model in seed["blocks"]) for seed in seeds]


def _used(seed: Mapping[str, Any], side: str, what: str) -> float:
    return float(sum(session[what] for session in seed["sessions"][side]))


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=["resnet18", "mobilenet_v2", "squeezenet1_1"])
    parser.add_argument("--seconds", type=float, default=360.0, help="for all models")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--rounds", type=int, default=40, help="in which the compiled models run in turns")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    import slipstream

    name = " + ".join(options.models)
    work = options.work / "-".join(options.models)
    untuned = {model: work / "not-tuned" / model for model in options.models}
    for model, path in untuned.items():
        if not path.exists():
            slipstream.compile(f"zoo:{model}", path)
    found: dict[str, Any] = {"seconds": options.seconds, "seeds": {}}
    for number in range(options.seeds):
        seed = options.seed + number
        turn = number % len(options.sides)
        sessions, artifacts = {}, {}
        for side in (*options.sides[turn:], *options.sides[:turn]):
            folder = work / f"seed-{seed}" / side.replace(", ", "-").replace(" ", "-")
            sessions[side], artifacts[side] = _tune(side, options, folder, seed)
        blocks = {}
        for model in options.models:
            sides = {side: paths[model] for side, paths in artifacts.items()}
            blocks[model] = race({UNTUNED: untuned[model], **sides}, options.rounds)
        found["seeds"][str(seed)] = {"sessions": sessions, "blocks": blocks}
        yield name, found


def _tune(
    side: str, options: argparse.Namespace, folder: Path, seed: int
) -> tuple[list[dict[str, Any]], dict[str, Path]]:
    """The sessions of a side, and the artifact of each model."""
    from benchmarks.ended_session import tune_apart

    models = options.models
    if side == TOGETHER:
        ended = tune_apart([f"zoo:{model}" for model in models], folder, budget=options.seconds, seed=seed)
        return [_figures(ended)], {model: ended.directory.artifact(model) for model in models}
    folder.mkdir(parents=True, exist_ok=True)
    shared = {"store": str(folder / "shared.db")} if side == ONE_STORE else {}
    sessions, artifacts = [], {}
    for model in models:
        share = options.seconds / len(models)
        ended = tune_apart(f"zoo:{model}", folder / model, budget=share, seed=seed, **shared)
        sessions.append(_figures(ended))
        artifacts[model] = ended.directory.model
    return sessions, artifacts


def _figures(ended: Any) -> dict[str, Any]:
    return {name: value for name, value in ended.to_json().items() if name != "curve"}


if __name__ == "__main__":
    run(__name__)
