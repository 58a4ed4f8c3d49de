"""Timing an artifact against other runtimes: same inputs, same threads, as servers call models, with the spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.artifact.comparison import Comparison, Part, Progress
from slipstream.artifact.contender import OURS, BaselineError
from slipstream.artifact.directory import artifact_in
from slipstream.artifact.manifest import Manifest
from slipstream.artifact.request_pattern import RequestPattern
from slipstream.errors import InputError
from slipstream.frontends.inputs import Array
from slipstream.machine.target import available_cores

__all__ = ["BACK_TO_BACK", "OURS", "PATTERNS", "BaselineError", "BenchResult", "bench", "bench_shapes"]

BACK_TO_BACK = RequestPattern()
PATTERNS = (BACK_TO_BACK, RequestPattern(pause=0.02))


@dataclass(frozen=True)
class BenchResult:
    model: str
    threads: int
    parts: tuple[Part, ...]  # one for every pattern of requests
    device: str = ""  # the GPU; nothing for a CPU
    shape: str = ""  # of the inputs, of an artifact for several


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
    shape: int = 0,
) -> BenchResult:
    """Time the artifact and each runtime in `against` for about `seconds` together, once it is known that all of them
    compute the same. Every contender has a process of its own; they take turns. They run on `input_data`; without it,
    on the data that the artifact was compiled with, or on random inputs. `shape` is the number of one of its shapes.
    """
    if seconds <= 0:
        raise InputError(f"cannot measure for {seconds} s: give a positive number of seconds")
    whole = Manifest.read(artifact_in(Path(directory)))
    threads = min(threads or whole.threads, available_cores())
    callers = max(pattern.callers for pattern in patterns)
    rng = np.random.default_rng(seed)
    with Comparison(
        directory, threads=threads, model=model, callers=callers, seed=seed, input_data=input_data, shape=shape
    ) as comparison:
        for name in dict.fromkeys(against):
            comparison.add(name)
        parts = []
        for number, pattern in enumerate(patterns):

            def show(done: float, before: int = number) -> None:
                progress((before + done) / len(patterns))

            parts.append(comparison.measure(pattern, seconds / len(patterns), rng, show))
        manifest = comparison.manifest
    device = manifest.cpu if manifest.gpu else ""
    return BenchResult(manifest.model, threads, tuple(parts), device, whole.shape_labels[shape])


def bench_shapes(
    directory: str | Path, *, seconds: float = 10.0, progress: Progress = lambda done: None, **options: Any
) -> list[BenchResult]:
    """`bench` of every shape of the artifact, one after the other, for about `seconds` in all."""
    count = len(Manifest.read(artifact_in(Path(directory))).single_shapes)

    def of_shape(number: int) -> BenchResult:
        def show(done: float) -> None:
            progress((number + done) / count)

        return bench(directory, seconds=seconds / count, progress=show, shape=number, **options)

    return [of_shape(number) for number in range(count)]
