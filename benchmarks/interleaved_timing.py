"""Artifacts of one model and ONNX Runtime, timed in turns in several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

AS_FAST = 1.01  # as fast as: within one per cent
Blocks = dict[str, list[list[float]]]
"""Name -> for every process, the medians of its blocks of runs. Blocks of the same number ran next to each other."""


def time_interleaved(model: str, paths: Mapping[str, Path], *, seconds: float, processes: int) -> Blocks:
    """Seconds that artifacts of a zoo model and ONNX Runtime take.

    Memory placement makes the same code up to a tenth faster or slower from process to process, so a comparison
    needs several processes.
    """
    blocks: Blocks = {}
    named = json.dumps({name: str(path) for name, path in paths.items()})
    for seed in range(processes):
        command = [sys.executable, "-m", "benchmarks.interleaved_timing"]
        command += [model, named, str(seconds / processes), str(seed)]
        for name, timed in json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout).items():
            blocks.setdefault(name, []).append(timed)
    return blocks


def ratios(ours: list[list[float]], theirs: list[list[float]]) -> list[float]:
    """Latency of one to that of the other in the same round, all rounds of all processes."""
    return [ratio for process in _by_process(ours, theirs) for ratio in process]


def by_process(ours: list[list[float]], theirs: list[list[float]]) -> list[float]:
    """The same, the median of each process."""
    return [median(process) for process in _by_process(ours, theirs)]


def _by_process(ours: list[list[float]], theirs: list[list[float]]) -> list[list[float]]:
    return [[a / b for a, b in zip(mine, other, strict=False)] for mine, other in zip(ours, theirs, strict=True)]


def _time_here(model: str, paths: Mapping[str, str], seconds: float, seed: int) -> dict[str, list[float]]:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    from slipstream.artifact.baselines import baseline
    from slipstream.artifact.bench import interleave
    from slipstream.artifact.loaded import load
    from slipstream.frontends.inputs import random_inputs
    from slipstream.machine.target import resolve_target

    threads = resolve_target("cpu").threads
    compiled = {name: load(path, threads=threads) for name, path in paths.items()}
    first = next(iter(compiled.values()))
    feed = random_inputs(first.inputs, np.random.default_rng(0))
    runs: dict[str, Any] = {name: (lambda artifact=artifact: artifact(feed)) for name, artifact in compiled.items()}
    runs["onnxruntime"] = baseline("onnxruntime", first.manifest, f"zoo:{model}", feed, threads)
    timed = interleave(runs, seconds, np.random.default_rng(seed))
    return {name: [float(np.median(block)) for block in samples] for name, samples in timed.items()}


if __name__ == "__main__":
    model, paths, seconds, seed = sys.argv[1:]
    print(json.dumps(_time_here(model, json.loads(paths), float(seconds), int(seed))))
