"""An artifact and other runtimes, each in a process of its own, taking turns block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from slipstream.artifact.baselines import ModelFiles, check_baseline, forms_of, model_files, settings_of
from slipstream.artifact.contender import OURS, Contender, Job, LoadFacts
from slipstream.artifact.directory import artifact_in
from slipstream.artifact.latency_statistics import Ratio, Timing, ratio_of, timing_of
from slipstream.artifact.loaded import check_artifact, example_inputs
from slipstream.artifact.request_pattern import Block, RequestPattern
from slipstream.errors import InputError
from slipstream.frontends.archives import write_archive
from slipstream.frontends.inputs import Array, feed_of
from slipstream.frontends.output_files import arrays_of
from slipstream.frontends.shape_variants import fit_arrays

Progress = Callable[[float], None]
RunBlock = Callable[[float, int], Block]
"""Runs one block of so many seconds; the number seeds its arrival times, the same for all contenders of a round."""

_LEAST_ROUNDS = 10
# Of several callers: fewer rounds, whose blocks are longer.
_LEAST_LONG_ROUNDS = 5
_CALLS_TO_SETTLE = 10
_LONGEST_TO_SETTLE = 1.0
_ALLOWED = 1e-2
_ROUNDS_TO_CHOOSE = 3


@dataclass(frozen=True)
class Part:
    """All contenders under one pattern of requests, the artifact first."""

    pattern: RequestPattern
    timings: tuple[Timing, ...]
    ratios: tuple[Ratio, ...]


class Comparison:
    """The processes of all contenders; only one of them runs at a time.

    Every setting of a runtime (`settings_of`) is a process too; `callers` is the most a pattern will have. `shape` is
    the number of the shape at which all run.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        threads: int,
        model: str | None = None,
        cores: Sequence[int] = (),
        callers: int = 1,
        seed: int = 0,
        input_data: Mapping[str, Array] | None = None,
        shape: int = 0,
    ) -> None:
        directory = artifact_in(Path(directory))
        whole = check_artifact(directory)
        self.manifest = whole.single_shapes[shape]
        if input_data and whole.variants:
            input_data = fit_arrays(input_data, self.manifest.inputs)
        self.facts: dict[str, dict[str, LoadFacts]] = {}
        self._model, self._callers = model, callers
        self._files: tuple[ModelFiles, object] | None = None
        self._started: dict[str, dict[str, Contender]] = {}
        self._folder = TemporaryDirectory(prefix="slipstream-")
        feeds = Path(self._folder.name, "feeds.npz")
        rng = np.random.default_rng(seed)
        values = (
            feed_of(self.manifest.inputs, input_data, rng)
            if input_data
            else example_inputs(directory, self.manifest, seed)
        )
        write_archive(feeds, values)
        self._input_data = values if input_data or self.manifest.input_data else None
        runs_alone = self.manifest.runs_alone
        self._job = Job(OURS, "", str(directory), None, str(feeds), threads, runs_alone, tuple(cores))
        try:
            self._outputs = self._start(self._job).outputs()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def files(self) -> ModelFiles | None:
        """The model as other runtimes were given it, once there was one."""
        return self._files[0] if self._files else None

    def add(self, name: str) -> None:
        """Start another runtime and compare its outputs; raises what keeps it from taking part."""
        check_baseline(name, self.manifest, self._model)
        if self._files is None:
            self._files = model_files(self.manifest, self._model, self._input_data)
        try:
            for setting in settings_of(name, self._callers):
                job = replace(self._job, name=name, files=self._files[0])
                if not any(self._agrees(replace(job, setting=form)) for form in forms_of(name, setting)):
                    raise InputError(f"{name} computes something else on the same inputs: it cannot be compared")
        except BaseException:
            for contender in self._started.pop(name, {}).values():
                contender.close()
            raise

    def _agrees(self, job: Job) -> bool:
        """Whether a setting of another runtime takes part: a race between programs that compute different things says
        nothing."""
        theirs, ours = self._comparable(self._start(job).outputs()), self._comparable(self._outputs)
        pairs = list(zip_longest(arrays_of(theirs), arrays_of(ours)))
        if all(a is not None and b is not None and _agree(b, a, self._allowed) for a, b in pairs):
            return True
        self._started[job.name].pop(job.setting).close()
        self.facts[job.name].pop(job.setting)
        return False

    def measure(
        self, pattern: RequestPattern, seconds: float, rng: np.random.Generator, progress: Progress = lambda done: None
    ) -> Part:
        """Time all contenders for about `seconds` together, each at the setting that is fastest in this pattern."""
        began = time.perf_counter()
        length = block_length(pattern, seconds, len(self._started))
        rounds = _LEAST_ROUNDS
        if pattern.callers > 1 and pattern.rate is None:
            length, rounds = self._settled_length(pattern, length, rng), _LEAST_LONG_ROUNDS
        chosen = {name: self._fastest(name, pattern, length, rng) for name in self._started}
        runs = {name: partial(self._started[name][setting].block, pattern) for name, setting in chosen.items()}
        blocks = interleave_blocks(runs, length, seconds, rng, progress, began, rounds)
        timings = tuple(timing_of(name, blocks[name], chosen[name]) for name in blocks)
        others = [name for name in blocks if name != OURS]
        ratios = tuple(ratio_of(name, blocks[OURS], blocks[name], pattern.callers) for name in others)
        return Part(pattern, timings, ratios)

    def close(self) -> None:
        for settings in self._started.values():
            for contender in settings.values():
                contender.close()
        self._started.clear()
        self._folder.cleanup()

    def _start(self, job: Job) -> Contender:
        contender = self._started.setdefault(job.name, {})[job.setting] = Contender(job)
        self.facts.setdefault(job.name, {})[job.setting] = contender.ready()
        return contender

    def _comparable(self, outputs: list[Any]) -> list[Any]:
        """Without those that may differ where two values are nearly equal, which verification did not compare."""
        checked = self.manifest.verification and {check.name for check in self.manifest.verification.outputs}
        pairs = zip(self.manifest.outputs, outputs, strict=True)
        return [output for spec, output in pairs if not checked or spec.name in checked]

    @property
    def _allowed(self) -> float:
        """The relative difference at which outputs count as equal; of those in 8 bits verification knows a level."""
        verification = self.manifest.verification
        tolerances = [check.tolerance for check in verification.outputs] if verification else []
        return max([_ALLOWED, *(2 * tolerance for tolerance in tolerances if tolerance > _ALLOWED)])

    def _settled_length(self, pattern: RequestPattern, length: float, rng: np.random.Generator) -> float:
        """Several callers begin together and end one by one: a block in which each calls once or twice is mostly that.

        So long, if not over a second, that each calls some ten times.
        """
        seed = int(rng.integers(2**32))
        first = [next(iter(settings.values())).block(pattern, length, seed) for settings in self._started.values()]
        slowest = max(float(np.median(block.latencies)) for block in first)
        return max(length, min(_CALLS_TO_SETTLE * (slowest + pattern.pause), _LONGEST_TO_SETTLE))

    def _fastest(self, name: str, pattern: RequestPattern, length: float, rng: np.random.Generator) -> str:
        """The setting with the lowest median or, for several callers, with which most requests are served."""
        settings = self._started[name]
        if len(settings) == 1:
            return next(iter(settings))
        typical = np.median if pattern.callers == 1 or pattern.rate is not None else np.mean
        times: dict[str, list[float]] = {setting: [] for setting in settings}
        for _ in range(_ROUNDS_TO_CHOOSE):
            seed = int(rng.integers(2**32))
            for setting in rng.permutation(list(settings)).tolist():
                block = settings[setting].block(pattern, length, seed)
                times[setting].append(float(typical(block.latencies)))
        return min(times, key=lambda setting: float(np.median(times[setting])))


def block_length(pattern: RequestPattern, seconds: float, contenders: int) -> float:
    """As long as the pattern asks for, or shorter, so that ten rounds of all contenders fit into `seconds`."""
    return min(pattern.block_seconds, max(pattern.least_block_seconds, seconds / (_LEAST_ROUNDS * contenders)))


def interleave_blocks(
    contenders: Mapping[str, RunBlock],
    length: float,
    seconds: float,
    rng: np.random.Generator,
    progress: Progress = lambda done: None,
    began: float | None = None,
    least_rounds: int = _LEAST_ROUNDS,
) -> dict[str, list[Block]]:
    """Run blocks of all contenders in a new order each round, for `seconds` since `began`, `least_rounds` at least."""
    blocks: dict[str, list[Block]] = {name: [] for name in contenders}
    began = time.perf_counter() if began is None else began
    rounds = 0
    while (elapsed := time.perf_counter() - began) < seconds or rounds < least_rounds:
        progress(min(elapsed / seconds, rounds / least_rounds, 1.0))
        seed = int(rng.integers(2**32))
        for name in rng.permutation(list(contenders)).tolist():
            blocks[name].append(contenders[name](length, seed))
        rounds += 1
    return blocks


def _agree(mine: Array, theirs: Array, allowed: float) -> bool:
    if mine.shape != theirs.shape or theirs.dtype.kind not in "biufV":
        return bool(np.array_equal(mine, theirs))
    wide = np.abs(theirs.astype(np.float64))
    scale = wide[np.isfinite(wide)].max(initial=0.0) or 1.0
    return np.allclose(mine, theirs, rtol=allowed, atol=allowed * scale, equal_nan=True)
