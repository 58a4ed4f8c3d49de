"""The process of one contender: loads a model, then runs blocks of requests as asked, one line of JSON each way.

Started by `slipstream.artifact.contender`. The cores are set before NumPy or a runtime starts threads.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import IO, Any

from slipstream.errors import SlipstreamError
from slipstream.machine.affinity import stay_on
from slipstream.processes.child import die_with_parent

# What a program that uses the runtime imports.
_PACKAGES = {"slipstream": "slipstream.artifact.loaded", "onnxruntime": "onnxruntime", "openvino": "openvino"}
_IDLE_STEP_SECONDS = 0.01
_IDLE_SHARE = 0.1  # of a core: below this the process is idle
_MOST_SECONDS_TO_IDLE = 1.0


def main() -> None:
    die_with_parent(os.getppid())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error
    job = json.loads(sys.stdin.readline())
    if job["cores"]:
        stay_on(job["cores"])
    serve(job, sys.stdin, answers)


def serve(job: dict[str, Any], questions: IO[str], answers: IO[str]) -> None:
    """Get ready, say so, then answer each question; the first failure ends it."""

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        contender = LoadedContender(job)
        say({"result": contender.facts})
        for line in questions:
            question = json.loads(line)
            say({"result": getattr(contender, question.pop("question"))(**question)})
    except SlipstreamError as error:
        say({"error": type(error).__name__, "message": str(error)})
    except Exception as error:  # whatever another runtime raises about a model
        from slipstream.artifact.contender import last_line

        traceback.print_exc()
        say({"failed": last_line(str(error)) or type(error).__name__})


class LoadedContender:
    """The model, loaded; methods are the questions it answers."""

    def __init__(self, job: dict[str, Any]) -> None:
        from slipstream.frontends.archives import read_archive

        self._feeds = read_archive(job["feeds"])
        self._pools: dict[int, Any] = {}
        before, began = _resident_bytes(), time.perf_counter()
        with contextlib.suppress(ImportError):  # the loader says what is missing
            importlib.import_module(_PACKAGES.get(job["name"], "numpy" if job["loader"] else "torch"))
        imported, import_seconds = _resident_bytes() - before, time.perf_counter() - began
        load = _loader(job, self._feeds)
        before, began = _resident_bytes(), time.perf_counter()
        self._run, self._outputs = load()
        self._run()
        self.facts = {
            "import_seconds": import_seconds,
            "load_seconds": time.perf_counter() - began,
            "memory_bytes": imported + _resident_bytes() - before,
            "process_threads": len(os.listdir("/proc/self/task")),
        }

    def outputs(self, path: str) -> dict[str, Any]:
        from slipstream.frontends.output_files import write_outputs

        write_outputs(path, self._outputs())
        return {}

    def block(self, pattern: dict[str, Any], seconds: float, seed: int) -> dict[str, Any]:
        from concurrent.futures import ThreadPoolExecutor
        from dataclasses import asdict

        from slipstream.artifact.request_pattern import RequestPattern, run_block

        asked = RequestPattern(**pattern)
        if asked.callers not in self._pools:
            self._pools[asked.callers] = ThreadPoolExecutor(asked.callers)
        found = asdict(run_block(self._run, asked, seconds, seed, self._pools[asked.callers]))
        _wait_until_idle()
        return found


Loader = Callable[[], tuple[Callable[[], Any], Callable[[], list[Any]]]]
"""Loads the model: a function to time, and one that gives the outputs as arrays."""


def _loader(job: dict[str, Any], feeds: dict[str, Any]) -> Loader:
    if job["loader"]:
        module, _, function = job["loader"].partition(":")
        found: Loader = getattr(importlib.import_module(module), function)(job, feeds)
        return found
    return _our_loader(job, feeds) if job["files"] is None else _their_loader(job, feeds)


def _our_loader(job: dict[str, Any], feeds: dict[str, Any]) -> Loader:
    from slipstream.artifact.loaded import load

    if not job["runs_alone"]:
        from slipstream.tvm_bridge.imports import import_tvm_without_torch

        import_tvm_without_torch()

    def open_model() -> tuple[Callable[[], Any], Callable[[], list[Any]]]:
        compiled = load(job["directory"], threads=job["threads"])
        # On a GPU nobody's inputs are copied: what is compared are the kernels.
        run = compiled.on_device(feeds) if compiled.manifest.gpu else lambda: compiled(feeds)
        return run, lambda: list(compiled(feeds))

    return open_model


def _their_loader(job: dict[str, Any], feeds: dict[str, Any]) -> Loader:
    from slipstream.artifact.baselines import ModelFiles, import_for, open_baseline

    import_for(job["name"])
    files = ModelFiles(**job["files"])

    def open_model() -> tuple[Callable[[], Any], Callable[[], list[Any]]]:
        run = open_baseline(job["name"], files, feeds, job["threads"], job["setting"])
        return run, lambda: [output.cpu().numpy() if hasattr(output, "cpu") else output for output in run()]

    return open_model


def _wait_until_idle() -> None:
    """Threads may spin after the last request: the next contender's block starts when they have stopped."""
    deadline = time.perf_counter() + _MOST_SECONDS_TO_IDLE
    while time.perf_counter() < deadline:
        used = time.process_time()
        time.sleep(_IDLE_STEP_SECONDS)
        if time.process_time() - used < _IDLE_SHARE * _IDLE_STEP_SECONDS:
            return


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
