"""Latency of compiled models against other runtimes (5 minutes a model).

Slipstream's artifact, tuned for two minutes and untuned, against ONNX Runtime, OpenVINO, PyTorch (eager and
compiled), IREE and unmodified TVM: batch 1, float32, same inputs, same threads, every side's outputs compared with
ONNX Runtime's. Each side runs in a process of its own (`benchmarks.rivals`), in turns, with the best of its sensible
settings for that model. `pip install .[rivals,torch]` installs them; a side that is missing or cannot take a model
says why. Artifacts and what rivals compiled stay in the work folder: `--prepare` makes them all and measures nothing.

`--dtype int8`, `float16` or `bfloat16` compares models in that type with ONNX Runtime, OpenVINO, `torch.compile` under
autocast and our own float32, back to back and after pauses, each tuned for three minutes (`benchmarks/short_types.py`).

All sides and all tuning run on the cores that this process may use (`taskset`), with a thread for each; `--cores` binds
it to that many of them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from statistics import geometric_mean, median
from typing import Any

from benchmarks import short_types, spread
from benchmarks.rivals.sides import SIDES, TUNED_BY_TVM
from benchmarks.runner import run
from benchmarks.spread import table, with_quartiles
from slipstream.errors import InputError

OURS, UNTUNED = "slipstream", "slipstream untuned"
_SIDES = (OURS, UNTUNED, *(side for side in SIDES if side not in TUNED_BY_TVM))
_HEADINGS = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "torch": "PyTorch",
    "torch.compile": "torch.compile",
    "torch.compile max-autotune": "max-autotune",
    "iree": "IREE",
    "tvm untuned": "TVM untuned",
}
# The last two are of the onnx package, with random weights.
MODELS = (
    "resnet18",
    "resnet50",
    "squeezenet1_1",
    "mobilenet_v2",
    "efficientnet_b0",
    "inception_v3",
    "transformer_encoder",
    "bert_base",
    "light_densenet121",
    "light_shufflenet",
)
QUICK = {"models": ["squeezenet1_1"], "budget": "20s", "processes": 1, "rounds": 4, "sides": _SIDES[:4]}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="float32", choices=["float32", *short_types.DTYPES])
    parser.add_argument(
        "--models", nargs="+", help=f"[{' '.join(MODELS)}; of a short type {' '.join(short_types.MODELS)}]"
    )
    parser.add_argument("--sides", nargs="+", default=list(_SIDES), choices=_SIDES)
    parser.add_argument("--budget", help="for tuning each model [2m; of a short type 3m]")
    parser.add_argument("--processes", type=int, default=3, help="of each side, one after the other")
    parser.add_argument("--rounds", type=int, default=12, help="in each of them")
    parser.add_argument("--cores", type=int, help="use only so many, the first of those that may be used [all]")
    parser.add_argument("--machine", default="", help="a name: results of this machine get a table of their own")
    parser.add_argument("--prepare", action="store_true", help="make what takes long to make, untuned artifacts too")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from benchmarks.rivals.rounds import compare
    from slipstream.machine.target import available_cores

    short = options.dtype != "float32"
    options.budget = options.budget or ("3m" if short else "2m")
    if options.cores:
        bind(options.cores)
    if short:
        yield from short_types.measure(options)
        return
    for model in options.models or MODELS:
        jobs = prepared(model, options, available_cores())
        if options.prepare:
            for side in options.sides:
                print(model, side, compare([side], jobs, processes=1, rounds=0, seed=0)[side], flush=True)
            continue
        found = compare(options.sides, jobs, processes=options.processes, rounds=options.rounds, seed=options.seed)
        name = f"{model} on {options.cores} cores" if options.cores else model
        part = {"threads": available_cores(), "budget": options.budget, "sides": found}
        if options.machine:
            name, part["machine"] = f"{name}, {options.machine}", options.machine
        yield name, part


def bind(cores: int) -> None:
    """Bind this process, and all that it starts from now on, to the first `cores` of those that it may use."""
    usable = sorted(os.sched_getaffinity(0))
    if not 1 <= cores <= len(usable):
        raise InputError(f"{cores} cores are not between 1 and the {len(usable)} that may be used")
    os.sched_setaffinity(0, usable[:cores])


def prepared(model: str, options: argparse.Namespace, threads: int) -> dict[str, dict[str, Any]]:
    """The job of each side; artifacts that do not exist yet are made."""
    import slipstream
    from benchmarks.rivals.models import model_files

    folder = options.work / model
    files = model_files(model, folder / "files")
    of_cores = f"-{options.cores}-cores" if options.cores else ""
    artifacts = {OURS: folder / f"tuned{of_cores}", UNTUNED: folder / f"untuned{of_cores}"}
    jobs = {
        side: {
            **files,
            "threads": threads,
            "work": str(folder / side.replace(" ", "-")),
            "artifacts": {name: str(path) for name, path in artifacts.items()},
        }
        for side in options.sides
    }
    if not artifacts[UNTUNED].exists():
        slipstream.compile(files["source"], artifacts[UNTUNED])
    if OURS in options.sides:
        from benchmarks.ended_session import tune_apart

        tune_apart(files["source"], artifacts[OURS], budget=options.budget, seed=options.seed)
    return jobs


def ratios(sides: Mapping[str, Any], side: str, to: str = OURS) -> list[float]:
    """A side's latency to another one's in the same round, all rounds of all processes in which both took part."""
    return spread.ratios(sides[side]["blocks"], sides[to]["blocks"])


def markdown(data: Mapping[str, Any]) -> str:
    lines = []
    for machine, models in _by_machine(data).items():
        lines += ["", f"## {machine}", ""] if machine else []
        lines += _lines(models)
    return "\n".join(lines) + "\n" * bool(lines) + short_types.markdown(data)


def _by_machine(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The models in float32 on the machine without a name, then those on others."""
    found: dict[str, dict[str, Any]] = {}
    for name, model in data.items():
        if "dtype" not in model:
            found.setdefault(model.get("machine", ""), {})[name] = model
    return dict(sorted(found.items()))


def _lines(data: Mapping[str, Any]) -> list[str]:
    named = [side for side in _HEADINGS if any(side in model["sides"] for model in data.values())]
    lines = [
        "How many times as fast as each the tuned model is; above 1, Slipstream is faster. In brackets the quartiles"
    ]
    lines += ["over rounds. All sides are at the best of their settings that were tried.", ""]
    rows = []
    for name, model in data.items():
        sides = model["sides"]
        rows.append([name, f"{1e3 * _median(sides[OURS]):.2f}", *(_cell(sides, side) for side in (UNTUNED, *named))])
    lines += table(["model", "ms", "untuned", *(_HEADINGS[side] for side in named)], rows)
    each = [_times_as_fast(data, side).values() for side in (UNTUNED, *named)]
    means = [f"{geometric_mean(values):.2f}" if values else "" for values in each]
    lines.append("| geometric mean | | " + " | ".join(means) + " |")
    for name, model in data.items():
        lines += ["", f"### {name}", "", *_details(model)]
    return lines


def _details(model: Mapping[str, Any]) -> list[str]:
    lines = ["| side | ms | settings | largest error |", "| --- | --- | --- | --- |"]
    for side, found in model["sides"].items():
        if "failed" in found:
            lines.append(f"| {side} | | {found['failed']} | |")
        else:
            lines.append(f"| {side} | {1e3 * _median(found):.2f} | {found.get('variant', '')} | {found['error']:.0e} |")
    return lines


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    """Per model and side, and the geometric mean over the models a side could run: how many times as fast we are."""
    found = {"models": "0", **short_types.numbers(data)}
    for machine, models in _by_machine(data).items():
        of = f", {machine}" if machine else ""
        found[f"models{of}"] = str(len(models))
        for side in (UNTUNED, *_HEADINGS):
            each = _times_as_fast(models, side)
            if each:
                found[f"mean {side}{of}"] = f"{geometric_mean(each.values()):.2f}"
                found[f"least {side}{of}"] = f"{min(each.values()):.2f}"
                found[f"most {side}{of}"] = f"{max(each.values()):.2f}"
            found |= {f"{name} {side}": f"{value:.2f}" for name, value in each.items()}
    return found


def _times_as_fast(data: Mapping[str, Any], side: str) -> dict[str, float]:
    """As a side, by the models that it could run."""
    return {name: median(ratios(m["sides"], side)) for name, m in data.items() if _ran(m["sides"], side)}


def _ran(sides: Mapping[str, Any], side: str) -> bool:
    return side in sides and "failed" not in sides[side]


def _cell(sides: Mapping[str, Any], side: str) -> str:
    if side not in sides:
        return ""
    if not _ran(sides, side):
        return sides[side]["failed"].partition(":")[0]
    values = ratios(sides, side)
    return with_quartiles(values, 2 if median(values) < 10 else 0)


def _median(found: Mapping[str, Any]) -> float:
    return median([value for blocks in found["blocks"] for value in blocks if value is not None])


if __name__ == "__main__":
    run(__name__)
