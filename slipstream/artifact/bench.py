"""Timing an artifact against other runtimes: same inputs, same threads, as servers call models, with the spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipstream.artifact.comparison import Comparison, Part, Progress
from slipstream.artifact.contender import OURS, BaselineError
from slipstream.artifact.directory import artifact_in
from slipstream.artifact.manifest import Manifest
from slipstream.artifact.request_pattern import RequestPattern
from slipstream.errors import InputError
from slipstream.frontends.inputs import Array
from slipstream.machine.target import available_cores

__all__ = ["BACK_TO_BACK", "OURS", "PATTERNS", "BaselineError", "BenchResult", "bench"]

BACK_TO_BACK = RequestPattern()
PATTERNS = (BACK_TO_BACK, RequestPattern(pause=0.02))


@dataclass(frozen=True)
class BenchResult:
    model: str
    threads: int
    parts: tuple[Part, ...]  # one for every pattern of requests
    device: str = ""  # the GPU; nothing for a CPU


def bench(
    directory: str | Path,
    *,
    against: Sequence[str] = (),
    model: str | None = None,
    threads: int | None = None,
    seconds: float = 10.0,
    patterns: Sequence[RequestPattern] = PATTERNS,
    seed: int = 0,
    input_data: Mapping[str, Array] | None = None,
    progress: Progress = lambda done: None,
) -> BenchResult:
    """Time the artifact and each runtime in `against` for about `seconds` together, once it is known that all of them
    compute the same. Every contender has a process of its own; they take turns. They run on `input_data`; without it,
    on the data that the artifact was compiled with, or on random inputs.
    """
    if seconds <= 0:
        raise InputError(f"cannot measure for {seconds} s: give a positive number of seconds")
    threads = min(threads or Manifest.read(artifact_in(Path(directory))).threads, available_cores())
    callers = max(pattern.callers for pattern in patterns)
    rng = np.random.default_rng(seed)
    with Comparison(
        directory, threads=threads, model=model, callers=callers, seed=seed, input_data=input_data
    ) as comparison:
        for name in dict.fromkeys(against):
            comparison.add(name)
        parts = []
        for number, pattern in enumerate(patterns):

            def show(done: float, before: int = number) -> None:
                progress((before + done) / len(patterns))

            parts.append(comparison.measure(pattern, seconds / len(patterns), rng, show))
        manifest = comparison.manifest
    return BenchResult(manifest.model, threads, tuple(parts), manifest.cpu if manifest.gpu else "")
