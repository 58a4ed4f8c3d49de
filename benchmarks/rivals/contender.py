"""One runtime in a process of its own, which runs a model in short blocks on request.

Runtimes disturb each other in one process (thread pools, allocators, environment), so every side is a process that
sleeps until its turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

Run = Callable[[], Sequence[Any]]

SIDES = {
    "slipstream": "our_side",
    "slipstream untuned": "our_side",
    "onnxruntime": "onnxruntime_side",
    "openvino": "openvino_side",
    "torch": "torch_side",
    "torch.compile": "torch_side",
    "torch.compile max-autotune": "torch_side",
    "iree": "iree_side",
    "tvm untuned": "tvm_side",
    "tvm tune_relax": "tvm_side",
}
# Of the largest value of an output. Runtimes add in different orders and take different polynomials for exp.
_TOLERANCE = 1e-3
_BLOCK_SECONDS = 0.1
_PAUSE_SECONDS = 0.02  # worker threads of the side before may still be spinning
_CHOICE_ROUNDS = 8
# Not `-m`: this file would be there twice, and what a side raises another class than the one caught here.
_MAIN = "from benchmarks.rivals.contender import main; main()"


class ContenderError(Exception):
    """A side that cannot take part; the message says why in a few words."""


class Contender:
    """The parent's end of a side, which gets ready meanwhile. `job` has the model's files, threads and a `work` folder.

    With `job["variant"]` only that variant of its settings is prepared.
    """

    def __init__(self, side: str, job: Mapping[str, Any]) -> None:
        self.side = side
        module = import_module(f"benchmarks.rivals.{SIDES[side]}")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, side, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **module.environment(job["threads"])},
        )

    def wait(self) -> dict[str, Any]:
        """Its description, once it is ready; raises `ContenderError` if it fails."""
        return self._answer()

    def choose(self) -> dict[str, Any]:
        """Let it time its variants and use the fastest from then on."""
        return self._ask("choose")

    def block(self) -> list[float]:
        """Seconds of each run of one block."""
        times: list[float] = self._ask("block")["times"]
        return times

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, question: str) -> dict[str, Any]:
        time.sleep(_PAUSE_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"failed": f"crashed (exit {self._process.wait()})"}
        if "failed" in answer:
            raise ContenderError(answer["failed"])
        return answer


def serve(side: str, job: dict[str, Any], answers: IO[str]) -> None:
    """Be that side: get ready, say so, then answer each line of standard input."""

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    began = time.perf_counter()
    try:
        variants = import_module(f"benchmarks.rivals.{SIDES[side]}").variants(side, job)
        errors = {name: _error(run, job) for name, run in variants.items()}
    except ContenderError as error:
        return say({"failed": str(error)})
    except Exception as error:
        traceback.print_exc()
        text = (str(error).strip().splitlines() or [""])[0]
        return say({"failed": f"{type(error).__name__}: {text}"[:200]})
    say({"error": max(errors.values()), "ready_seconds": round(time.perf_counter() - began, 1)})
    chosen = next(iter(variants))
    for line in sys.stdin:
        if line.strip() == "choose":
            chosen, tried = choose(variants)
            say({"variant": chosen, "tried": tried})
        else:
            say({"times": run_block(variants[chosen])})
    return None


def choose(variants: Mapping[str, Run]) -> tuple[str, dict[str, float]]:
    """The fastest variant, in turns; and what each took."""
    if len(variants) == 1:
        return next(iter(variants)), {}
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(_CHOICE_ROUNDS):
        for name, run in variants.items():
            time.sleep(_PAUSE_SECONDS)
            taken[name].append(float(np.median(run_block(run))))
    medians = {name: float(np.median(times)) for name, times in taken.items()}
    return min(medians, key=medians.__getitem__), medians


def run_block(run: Run) -> list[float]:
    """Times of the runs of one block; its first run is not counted, since other sides have filled the caches."""
    run()
    times: list[float] = []
    began = time.perf_counter()
    while not times or time.perf_counter() - began < _BLOCK_SECONDS:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _error(run: Run, job: Mapping[str, Any]) -> float:
    """The largest error against ONNX Runtime, relative to the largest value of that output; too large is a failure."""
    with np.load(job["expected"]) as archive:
        expected = [archive[f"arr_{n}"] for n in range(len(archive.files))]
    worst = 0.0
    for wanted, given in zip(expected, run(), strict=True):
        scale = float(np.abs(wanted).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(wanted - np.asarray(given)).max(initial=0.0)) / scale)
    if not worst <= _TOLERANCE:
        raise ContenderError(f"wrong: off by {worst:.1g}")
    return worst


def feeds(job: Mapping[str, Any]) -> dict[str, Any]:
    with np.load(job["feeds"]) as archive:
        return dict(archive)


def wanted(job: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The variants to prepare: all, unless one has been chosen before."""
    return [job["variant"]] if job.get("variant") else list(names)


def work_folder(job: Mapping[str, Any]) -> Path:
    folder = Path(job["work"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    """Keep the real standard output for answers; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], json.loads(sys.argv[2]), answers)
