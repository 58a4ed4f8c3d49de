"""What a pause before a call costs on this machine, whoever computes (a minute a model).

A call that follows a pause takes longer because threads have to be woken, and because the machine has changed: other
users' work has emptied caches, a processor has slept. To tell these apart, the same calls are made with one thread,
which nobody has to wake, and after pauses in which the calling thread works (in a loop that needs next to no memory),
so that its processor does not sleep; beside them ONNX Runtime, which keeps its threads awake for a while. Kinds of
pauses take turns in blocks, each side in a process of its own, one after the other. What one thread loses after a pause
in which it worked is not a matter of threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.runner import run
from benchmarks.spread import table, with_quartiles

_MODELS = ("squeezenet1_1", "mobilenet_v2", "resnet18")
SIDES = ("slipstream", "onnxruntime")
BACK_TO_BACK = "back to back"
_CALLS, _BETWEEN = 20, 10  # of a block: back to back, and with pauses
QUICK = {"models": ["tiny_cnn"], "rounds": 2}


def _work(seconds: float) -> None:
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


PAUSES: Mapping[str, Callable[[], None]] = {
    BACK_TO_BACK: lambda: None,
    "20 ms, working": lambda: _work(0.02),
    "20 ms, asleep": lambda: time.sleep(0.02),
    "100 ms, asleep": lambda: time.sleep(0.1),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=list(_MODELS), help="of the zoo")
    parser.add_argument("--threads", nargs="+", type=int, help="[1, and one for each core]")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--machine", help="named in the table, where a part of another machine is there already")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    from slipstream.machine.target import available_cores

    for model in options.models:
        files = _prepared(model, options.work)
        found = {}
        for threads in options.threads or sorted({1, available_cores()}):
            for side in SIDES:
                with get_context("spawn").Pool(1) as pool:
                    found[f"{side}, {threads}"] = pool.apply(
                        _in_turns, (side, files, threads, options.rounds, options.seed)
                    )
        yield (f"{model}, {options.machine}" if options.machine else model), found


def _prepared(model: str, work: Path) -> dict[str, str]:
    """The model's files, and where it is compiled, untuned."""
    import slipstream
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    from benchmarks.rivals.models import model_files

    compiled = work / model / "untuned"
    if not compiled.exists():
        slipstream.compile(f"zoo:{model}", compiled)
    return {**model_files(model, work / model / "files"), "compiled": str(compiled), "work": str(work)}


def _in_turns(side: str, files: Mapping[str, str], threads: int, rounds: int, seed: int) -> dict[str, list[float]]:
    """The median of every round, by kind of pause; in this process, which has done nothing else."""
    from benchmarks.rivals.sides import load

    job = {"name": side, "setting": "", "directory": files["compiled"], "threads": threads, "options": files}
    call, _ = load(job, dict(np.load(files["feeds"])))()
    for _ in range(_CALLS):
        call()
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {name: [] for name in PAUSES}
    for _ in range(rounds):
        for name in rng.permutation(list(PAUSES)).tolist():
            taken = []
            for _ in range(_CALLS if name == BACK_TO_BACK else _BETWEEN):
                PAUSES[name]()
                began = time.perf_counter()
                call()
                taken.append(time.perf_counter() - began)
            found[name].append(median(taken[1:]))  # the first of a block follows another kind of pause
    return found


def markdown(parts: Mapping[str, Any]) -> str:
    kinds = [name for name in PAUSES if name != BACK_TO_BACK]
    rows = []
    for model, sides in parts.items():
        for side, found in sides.items():
            name, _, threads = side.rpartition(", ")
            cells = [with_quartiles(_slower(found, kind), 2) for kind in kinds]
            rows.append([model, name, threads, f"{1e3 * median(found[BACK_TO_BACK]):.2f}", *cells])
    lines = ["A call's time to that of the same call back to back, in the same round; medians and quartiles of rounds."]
    heads = ["model", "side", "threads", "back to back, ms", *(f"after {kind}" for kind in kinds)]
    return "\n".join([*lines, "", *table(heads, rows)]) + "\n"


def numbers(parts: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{model}: {side}, {kind}": f"{median(_slower(found, kind)):.2f}"
        for model, sides in parts.items()
        for side, found in sides.items()
        for kind in PAUSES
        if kind != BACK_TO_BACK
    }


def _slower(found: Mapping[str, list[float]], kind: str) -> list[float]:
    return [after / before for after, before in zip(found[kind], found[BACK_TO_BACK], strict=True)]


if __name__ == "__main__":
    run(__name__)
