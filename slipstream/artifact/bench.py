"""Timing an artifact against other runtimes: interleaved, same inputs, same threads, with the spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.artifact.baselines import baseline
from slipstream.artifact.loaded import load
from slipstream.errors import InputError, SlipstreamError
from slipstream.frontends.inputs import random_inputs
from slipstream.machine.target import available_cores
from slipstream.statistics import median_ranks

OURS = "slipstream"
_BLOCK_SECONDS = 0.1
# Worker threads go on spinning for a while after a run; the next contender must not pay for that.
_PAUSE_SECONDS = 0.02
_LEAST_BLOCKS = 10
_RESAMPLES = 2000


class BaselineError(InputError):
    """Another runtime cannot run the model, for a reason of its own."""

    def __init__(self, name: str, error: Exception) -> None:
        said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        super().__init__(f"{name} cannot run this model ({said.strip()}): leave it out of --against")
        self.name = name


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: the median over all runs and its 95 % interval."""

    name: str
    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Ratio:
    """How many times faster the artifact is than `against` (above one: faster), with its 95 % interval."""

    against: str
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class BenchResult:
    model: str
    threads: int
    timings: tuple[Timing, ...]
    ratios: tuple[Ratio, ...]
    device: str = ""  # the GPU; nothing for a CPU


def bench(
    directory: str | Path,
    *,
    against: Sequence[str] = (),
    model: str | None = None,
    threads: int | None = None,
    seconds: float = 10.0,
    seed: int = 0,
    progress: Callable[[float], None] = lambda done: None,
) -> BenchResult:
    """Time the artifact and each runtime in `against` for about `seconds` together."""
    if seconds <= 0:
        raise InputError(f"cannot measure for {seconds} s: give a positive number of seconds")
    threads = min(threads or available_cores(), available_cores())
    compiled = load(directory, threads=threads)
    feeds = random_inputs(compiled.inputs, np.random.default_rng(seed))
    # On a GPU no inputs are copied: the kernels are compared.
    ours = compiled.on_device(feeds) if compiled.manifest.gpu else lambda: compiled(feeds)
    contenders: dict[str, Callable[[], Any]] = {OURS: ours}
    for name in dict.fromkeys(against):
        try:
            run = baseline(name, compiled.manifest, model, feeds, threads)
            theirs = run()
        except SlipstreamError:
            raise
        except Exception as error:  # another runtime may raise anything
            raise BaselineError(name, error) from error
        _must_agree(name, theirs, list(compiled(feeds)))
        contenders[name] = run
    blocks = interleave(contenders, seconds, np.random.default_rng(seed), progress)
    timings = tuple(_timing(name, samples) for name, samples in blocks.items())
    ratios = tuple(_ratio(name, blocks[OURS], blocks[name]) for name in blocks if name != OURS)
    device = compiled.manifest.cpu if compiled.manifest.gpu else ""
    return BenchResult(compiled.manifest.model, threads, timings, ratios, device)


def interleave(
    contenders: Mapping[str, Callable[[], Any]],
    seconds: float,
    rng: np.random.Generator,
    progress: Callable[[float], None] = lambda done: None,
) -> dict[str, list[list[float]]]:
    """Run every contender in short blocks, in a new order each round; per contender, the times of each block.

    The first run of a block is thrown away: it pays for what the previous contender did to the caches.
    """
    blocks: dict[str, list[list[float]]] = {name: [] for name in contenders}
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds or len(blocks[next(iter(blocks))]) < _LEAST_BLOCKS:
        progress(min(elapsed / seconds, 1.0))
        for name in rng.permutation(list(contenders)):
            blocks[str(name)].append(_run_block(contenders[str(name)]))
    return blocks


def _run_block(run: Callable[[], Any]) -> list[float]:
    time.sleep(_PAUSE_SECONDS)
    run()
    samples: list[float] = []
    began = time.perf_counter()
    while not samples or time.perf_counter() - began < _BLOCK_SECONDS:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return samples


def _timing(name: str, blocks: list[list[float]]) -> Timing:
    samples = np.sort(np.concatenate(blocks))
    low, high = median_ranks(len(samples))
    return Timing(name, float(np.median(samples)), float(samples[low]), float(samples[high]), len(samples))


def _ratio(name: str, ours: list[list[float]], theirs: list[list[float]]) -> Ratio:
    """Bootstrap over rounds, since runs within a block share the state of caches and clocks."""
    a = np.array([np.median(block) for block in ours])
    b = np.array([np.median(block) for block in theirs])
    picks = np.random.default_rng(0).integers(0, len(a), (_RESAMPLES, len(a)))
    resampled = np.median(b[picks], axis=1) / np.median(a[picks], axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Ratio(name, float(np.median(b) / np.median(a)), float(low), float(high))


def _must_agree(name: str, outputs: list[Any], ours: list[Any]) -> None:
    """A race between programs that compute different things says nothing."""
    for mine, theirs in zip(ours, outputs, strict=True):
        other = theirs if isinstance(theirs, np.ndarray) else theirs.cpu().numpy()
        scale = np.abs(other.astype(np.float64)).max(initial=0.0) or 1.0
        if not np.allclose(mine, other, rtol=1e-2, atol=1e-2 * scale, equal_nan=True):
            raise InputError(f"{name} computes something else on the same inputs: it cannot be compared")
