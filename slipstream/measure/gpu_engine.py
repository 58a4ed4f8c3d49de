"""Measuring on this machine's GPU, or on several that are equal.

Programs are built on all cores while GPUs run those that are built: a builder takes nothing from a kernel. So nothing
waits for anything, and whoever supplies the programs can think about the next ones meanwhile.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from slipstream.measure.devices.cpu import TICK_SECONDS
from slipstream.measure.devices.gpu import GpuRunner
from slipstream.measure.engine import LocalMeasurer, Settled, different, digest, without_module
from slipstream.measure.reference import References
from slipstream.measure.summary import all_failed
from slipstream.measure.timing.settling import Settling
from slipstream.measure.trial import Trial
from slipstream.measure.types import Candidate, Measurement
from slipstream.processes.fork_server import ServerLostError, Speaker

logger = logging.getLogger(__name__)


@dataclass
class _Flow:
    """Programs on their way. `waiting` are to be built again after a server was lost."""

    source: Iterator[Candidate | None]
    waiting: deque[Trial] = field(default_factory=deque)
    building: list[Trial] = field(default_factory=list)
    built: deque[Trial] = field(default_factory=deque)
    running: list[Trial] = field(default_factory=list)
    exhausted: bool = False

    @property
    def trials(self) -> list[Trial]:
        return [*self.building, *self.built, *self.running]


class GpuMeasurer(LocalMeasurer):
    """As `LocalMeasurer`, on the GPUs of `config`. A source of programs may yield None: nothing yet, ask again."""

    _runner: GpuRunner

    def _make_runner(self, references: References) -> GpuRunner:
        return GpuRunner(self.target, references, self.config)

    def measure(self, programs: Iterable[Candidate | None]) -> Iterator[Measurement]:
        """Results as they become known. Programs are taken from `programs` only when there is room to build them."""
        flow = _Flow(iter(programs))
        failed: list[Measurement] | None = []
        with closing(self._flow(flow)) as results:
            for measurement in results:
                if failed is not None:
                    failed = [*failed, without_module(measurement)] if measurement.failure is not None else None
                yield measurement
        if failed and (warning := all_failed(failed)):
            logger.warning("%s", warning)

    def _flow(self, flow: _Flow) -> Generator[Measurement, None, None]:
        try:
            while True:
                try:
                    yield from self._fill(flow)
                    if not flow.trials:
                        return
                    yield from self._step(flow)
                except ServerLostError as lost:
                    yield from self._recover(flow.trials, flow.waiting, lost)
                    self._discard(flow.trials)
                    flow.building, flow.built, flow.running = [], deque(), []
        finally:
            for trial in flow.running:
                self._runner.drain(trial)
            self._discard(flow.trials)
            for trial in flow.waiting:
                self._known.pop(digest(trial.program), None)

    def _fill(self, flow: _Flow) -> Iterator[Measurement]:
        """Give every idle core something to build."""
        while len(flow.building) < self._workers:
            trial = flow.waiting.popleft() if flow.waiting else None
            if trial is None:
                program = None if flow.exhausted else self._next(flow)
                if program is None:
                    return
                admitted = self._admit(program)
                if not isinstance(admitted, Trial):
                    if admitted is not None:
                        yield admitted
                    continue
                trial = admitted
            flow.building.append(trial)
            self._runner.begin(trial)

    def _next(self, flow: _Flow) -> Candidate | None:
        try:
            return next(flow.source)
        except StopIteration:
            flow.exhausted = True
            return None

    def _step(self, flow: _Flow) -> Iterator[Measurement]:
        """Wait until somebody has something to say, and take it in."""
        yield from self._start(flow)
        workers = [trial.worker for trial in flow.building if trial.worker is not None]
        processes = [trial.gpu.process for trial in flow.running if trial.gpu is not None]
        speakers: list[Speaker] = [*workers, *processes]
        ready = self._runner.server.poll(speakers, TICK_SECONDS)
        for trial, process in zip(list(flow.running), processes, strict=True):
            if process in ready or self._runner.overdue(trial):
                measurement = self._runner.doubt(trial, self._runner.finish_run(trial), self._best(trial))
                flow.running.remove(trial)  # not before: should the server be lost, it has to be tried again
                yield from self._end(trial, measurement)
        for trial in list(flow.building):
            outcome = self._advance(trial, trial.worker in ready)
            if trial.stage == "built":
                flow.building.remove(trial)
                flow.built.append(trial)
                self._free_builder(trial)
            elif outcome is not None or trial.stage == "twin":
                self._discard([trial])
                flow.building.remove(trial)
                self._runner.forget(trial)
                if outcome is not None:
                    yield from self._finish(trial, outcome)

    def _start(self, flow: _Flow) -> Iterator[Measurement]:
        """Give every idle GPU something to run."""
        busy = [trial.gpu for trial in flow.running]
        idle = deque(gpu for gpu in self._runner.gpus if gpu not in busy)
        while idle and flow.built:
            trial = flow.built.popleft()
            failure = self._runner.start_run(trial, idle[0], self._best(trial))
            if failure is None:
                flow.running.append(trial)
                idle.popleft()
            else:
                yield from self._end(trial, trial.failed(failure))

    def _end(self, trial: Trial, measurement: Measurement) -> Iterator[Measurement]:
        self._runner.forget(trial)
        yield from self._finish(trial, measurement)
        self._discard([trial])

    def _free_builder(self, trial: Trial) -> None:
        """What it built is in a file: the process can go."""
        if trial.worker is not None:
            self._runner.server.discard(trial.worker)
            trial.worker = None

    def _best(self, trial: Trial) -> float | None:
        best = self.best.get(trial.program.operator)
        return best.median if best else None

    def _settle(
        self, trials: list[Trial], finalists: list[Measurement], settling: Settling, rng: np.random.Generator
    ) -> Settled | None:
        built: list[Trial] = []
        saved, self._known = self._known, {}
        try:
            # Each must be built although its result is known.
            for _ in self._build(iter(()), deque(trials), [], built, len(trials)):
                pass
        finally:
            self._known = saved
        runs = [(trial, self._runner.run(trial, None, keep=True)) for trial in built]
        remaining = [(trial, measurement) for trial, measurement in runs if measurement.failure is None]
        try:
            return self._compare(remaining, different(trials), settling, rng)
        finally:
            for trial, _ in remaining:
                self._runner.sample(trial, 1, 0)
            for trial in trials:
                self._runner.forget(trial)

    def _take_sample(self, trial: Trial, number: int) -> float:
        samples = self._runner.sample(trial, number, 1)
        return samples[0] if samples else math.inf
