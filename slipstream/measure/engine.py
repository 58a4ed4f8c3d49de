"""The measuring engine: a program's way from text to samples, the same for every kind of device.

    proposal -> admit -> lower -> generate -> run -> doubt -> result
                  |        |                   ^       |
           same text?  same code?              +-------+  wrong or disturbed: once more

Programs are built by workers forked from one server. On this machine's CPU, which is exclusive, building and running
take turns: while programs run, only as much is built as there are cores for beside them. Elsewhere building and running
overlap. The source of programs may yield None: nothing yet, ask again.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from slipstream.errors import BuildError
from slipstream.machine.target import Target
from slipstream.measure.config import MeasureConfig
from slipstream.measure.devices.base import DeviceLostError, Devices, Outcome
from slipstream.measure.duplicates import Duplicates, without_module
from slipstream.measure.reference import Reference, References, State
from slipstream.measure.roles import PREPARE, options_for
from slipstream.measure.summary import all_failed
from slipstream.measure.timing.racing import runs_per_sample
from slipstream.measure.timing.repeat import faster_of, must_repeat
from slipstream.measure.timing.settling import Settling, near_ties, settle
from slipstream.measure.trial import Answer, Stage, Trial, answer_of
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement, Settled
from slipstream.processes.channel import Speaker
from slipstream.processes.fork_server import ServerLostError

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.05
_TURN_SECONDS = 2.0
_MOST_ATTEMPTS = 2
# Roundings of the target's type on the way, whatever type the result has.
_ROUNDINGS = 16


@dataclass
class _Flow:
    """Programs on their way. `waiting` have to be built; `ended` hold a worker until the running turn is over.

    With `keep`, programs that ran well stay on their device and are listed in `finished`.
    """

    source: Iterator[Candidate | None]
    duplicates: Duplicates
    batch: int
    keep: bool = False
    waiting: deque[Trial] = field(default_factory=deque)
    building: list[Trial] = field(default_factory=list)
    built: deque[Trial] = field(default_factory=deque)
    running: list[Trial] = field(default_factory=list)
    ended: list[Trial] = field(default_factory=list)
    finished: list[tuple[Trial, Measurement]] = field(default_factory=list)
    exhausted: bool = False
    unavailable: str = ""

    @property
    def trials(self) -> list[Trial]:
        return [*self.building, *self.built, *self.running]

    def next(self) -> Candidate | None:
        """The next program; None if there is none now."""
        try:
            return None if self.exhausted else next(self.source)
        except StopIteration:
            self.exhausted = True
            return None


class Engine:
    """Measures programs of the operators in `references`: key -> the unscheduled function (see `reference_text`).

    Also a context manager; `close` ends all its processes. Not for use from several threads at once. `best` holds the
    fastest measurement of each operator so far.
    """

    def __init__(
        self, target: Target, references: Mapping[str, str], devices: Devices, config: MeasureConfig | None = None
    ) -> None:
        self.target = target
        self.config = config or MeasureConfig()
        self.devices = devices
        self.best: dict[str, Measurement] = {}
        self._references = References(references, self.config)
        self._duplicates = Duplicates()
        self._racing = asdict(self.config.racing)
        self._measuring = self._closed = False
        self._failed_starts = 0  # in a row, of servers
        self._start_server()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._references.close()
            self.server.close()
            self.devices.close()

    @property
    def _workers(self) -> int:
        """How many programs are built at a time."""
        return self.devices.builders(self.config.workers or self.target.threads)

    def measure(self, programs: Iterable[Candidate | None]) -> Iterator[Measurement]:
        """Results as they become known. Programs are taken from `programs` only when there is room to build them."""
        if self._measuring:
            raise RuntimeError("this measurer is measuring already: finish or close that iterator first")
        self._measuring = True
        failed: list[Measurement] | None = []
        try:
            with closing(self._run(_Flow(iter(programs), self._duplicates, self._workers))) as results:
                for measurement in results:
                    if failed is not None:
                        failed = [*failed, without_module(measurement)] if measurement.failure is not None else None
                    yield measurement
        finally:
            self._measuring = False
        if failed and (warning := all_failed(failed)):
            logger.warning("%s", warning)

    def settle(
        self,
        measurements: Iterable[Measurement],
        rng: np.random.Generator,
        settling: Settling | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> Settled | None:
        """Sample the near-ties among one operator's measurements again, in turn on one device, until one is fastest or
        it is `enough`.

        Should that fail twice because the server or the device is lost, the fastest as measured wins, undecided.
        """
        settling = settling or Settling()
        good = [m for m in measurements if m.failure is None and not m.duplicate and m.samples]
        finalists = [good[i] for i in near_ties([m.median for m in good], settling)]
        if not finalists:
            return None
        for _ in range(_MOST_ATTEMPTS):
            try:
                return self._settle(finalists, settling, rng, enough)
            except ServerLostError as lost:
                self._restart(lost)
            except DeviceLostError as lost:
                logger.warning("%s", lost)
        return Settled(finalists[0], decided=False, confidence=settling.confidence, finalists=tuple(finalists))

    def _settle(
        self, finalists: list[Measurement], settling: Settling, rng: np.random.Generator, enough: Callable[[], bool]
    ) -> Settled | None:
        # With a memory of its own for duplicates: each must be built although its result is known.
        flow = _Flow(iter(()), Duplicates(), len(finalists), keep=True)
        flow.waiting.extend(Trial(m.program) for m in finalists)
        with self.devices.only_one():
            try:
                for _ in self._run(flow):
                    pass
                return self._compare(flow.finished, settling, rng, enough)
            finally:
                for trial, _ in flow.finished:
                    self._free(trial)

    def _compare(
        self,
        finished: list[tuple[Trial, Measurement]],
        settling: Settling,
        rng: np.random.Generator,
        enough: Callable[[], bool],
    ) -> Settled | None:
        """Sample programs that are on a device, in turn. One with the code of another that was done is on none."""
        failed = sum(m.failure is not None for _, m in finished)
        if failed:
            logger.warning("%d finalists failed when run again", failed)
        remaining = [(trial, m) for trial, m in finished if m.failure is None and not m.duplicate]
        if not remaining:
            return None
        numbers = [runs_per_sample(m.median, self.config.racing) for _, m in remaining]

        def sample(i: int) -> float:
            return self.devices.sample(remaining[i][0], numbers[i])

        standing = settle(sample, len(remaining), settling, rng, enough)
        settled = [
            replace(m, samples=standing.rounds[i] or m.samples, stopped_early=False)
            for i, (_, m) in enumerate(remaining)
        ]
        winner = settled[standing.winner]
        self.best[winner.program.operator] = winner
        return Settled(winner, standing.decided, settling.confidence, tuple(settled))

    def _run(self, flow: _Flow) -> Generator[Measurement, None, None]:
        """Everything in `flow`, until its source is exhausted and all is answered."""
        try:
            while not flow.exhausted or flow.waiting or flow.trials:
                try:
                    yield from self._advance(flow)
                except ServerLostError as lost:
                    if flow.keep:
                        raise
                    yield from self._recover(flow, lost)
        finally:
            if not self._closed:
                self.devices.abandon()
                for trial in [*flow.trials, *flow.ended]:
                    self._free(trial)
            for trial in [*flow.trials, *flow.waiting]:
                flow.duplicates.forget(trial)

    def _advance(self, flow: _Flow) -> Iterator[Measurement]:
        """Take what there is room for, and one step; a whole running turn where building has to stop for it."""
        yield from self._take(flow)
        if not self.devices.exclusive:
            yield from self._step(flow)
        elif not self._is_turn_to_run(flow):
            yield from self._step(flow, run=False)
        else:
            with self.devices.quiet(flow.building):
                # What is built meanwhile may run too, but paused builders must not wait for ever.
                ends = time.monotonic() + _TURN_SECONDS
                while flow.running or (flow.built and (self.devices.is_alone or time.monotonic() < ends)):
                    if not self.devices.is_alone:
                        yield from self._take(flow)
                    yield from self._step(flow)
            while flow.ended:
                self._free(flow.ended.pop())
            flow.batch = min(2 * flow.batch, self.config.batch)

    def _is_turn_to_run(self, flow: _Flow) -> bool:
        """A batch is built, or half of the cores have nothing to build. Builders that are not done are paused, where
        they would disturb, and go on later: no core waits for the slowest."""
        enough = len(flow.built) >= flow.batch or 2 * len(flow.building) <= self._workers
        return enough and bool(flow.built) and not self._references.asked

    def _take(self, flow: _Flow) -> Iterator[Measurement]:
        """Give every idle core something to build, unless enough is built."""
        while sum(trial.paused_at is None for trial in flow.building) < self._workers and self._has_room(flow):
            trial = flow.waiting.popleft() if flow.waiting else None
            if trial is None:
                program = flow.next()
                if program is None:
                    return
                admitted = flow.duplicates.admit(program)
                if not isinstance(admitted, Trial):
                    if admitted is not None:
                        yield admitted
                    continue
                trial = admitted
            if flow.unavailable:
                trial.started_at = time.time()
                yield from self._end(flow, trial, self._no_device(trial, flow.unavailable))
                return  # one a step, so that a device that comes is noticed
            flow.building.append(trial)
            reference = self._references.ask(trial.operator, self.server)
            limit = math.inf if self.devices.limits_builds else self.config.build_seconds
            worker = self.server.fork("build", reference.arena)
            trial.start_building(worker, limit, self._build_core_limit(trial.operator, flow))
            trial.send({"lower": {"module": trial.program.module}})

    def _build_core_limit(self, operator: str, flow: _Flow) -> float:
        """Seconds of a core that building may take. A build that takes LLVM much longer than that of the operator's
        fastest program takes the time of dozens of others; in 105 recorded sessions no such program was the fastest in
        the end. Finalists have been built before.
        """
        best = self.best.get(operator)
        if best is None or flow.keep or self.devices.limits_builds:
            return math.inf
        return max(self.config.least_build_seconds, self.config.hopeless_build * best.build_seconds)

    def _has_room(self, flow: _Flow) -> bool:
        if self.devices.exclusive:
            return len(flow.built) < flow.batch
        return len(flow.building) + len(flow.built) < self._workers + self.devices.most_waiting

    def _step(self, flow: _Flow, *, run: bool = True) -> Iterator[Measurement]:
        """Start what can run, wait until a process answers, and take in the answers."""
        if run:
            flow.unavailable = self.devices.acquire(len(flow.built))
            yield from self._start(flow)
        builders = [trial.worker for trial in flow.building if trial.worker is not None]
        running = self.devices.speakers()
        speakers: list[Speaker] = [*builders, *self._references.speakers(), *running]
        timeout = _TICK_SECONDS if flow.trials or not flow.exhausted else 0.0
        ready = dict.fromkeys(self.server.poll(speakers, timeout))  # looked up for each of many workers
        self._references.collect(ready, self.server)
        if run:
            yield from self._collect(flow, ready)
        yield from self._build(flow, ready)

    def _start(self, flow: _Flow) -> Iterator[Measurement]:
        """Give every idle device a program whose reference is ready."""
        if self.devices.exclusive and self._references.asked:
            return  # computing them would disturb the run
        for trial in list(flow.built):
            reference = self._references[trial.operator]
            if flow.unavailable:
                ended = self._no_device(trial, flow.unavailable)
            elif reference.failure is not None:
                ended = trial.wrong or trial.failed(reference.failure)
            else:
                if reference.state is State.READY and self.devices.is_free(trial):
                    # Arguments that were made for the results of the default program are made again.
                    trial.is_allocated = trial.is_allocated and trial.plain == reference.plain
                    trial.plain = reference.plain
                    self.devices.start(trial, self._request(trial, reference), keep=flow.keep)
                    flow.built.remove(trial)
                    flow.running.append(trial)
                continue
            flow.built.remove(trial)
            yield from self._end(flow, trial, ended)

    def _request(self, trial: Trial, reference: Reference) -> dict[str, Any]:
        return {
            # A device keeps an operator's arguments under this name: results computed anew are another operator's.
            "operator": f"{trial.operator} plain" if reference.plain else trial.operator,
            "library": trial.library,
            "arena": f"/proc/{os.getpid()}/fd/{reference.arena}",
            "layout": reference.layout,
            "best": self._best(trial.operator),
            "tolerance": max(self.config.tolerance, _ROUNDINGS * self.target.rounding),
            "racing": self._racing,
            "model_weights": self.config.model_weights,
        }

    def _collect(self, flow: _Flow, ready: Collection[Speaker]) -> Iterator[Measurement]:
        """Take in the runs that have ended."""
        for trial, outcome in self.devices.collect(ready):
            measurement = self._judge(trial, outcome)
            flow.running.remove(trial)  # not before: should the server be lost, it has to be tried again
            if measurement is None:
                trial.stage = Stage.BUILT
                flow.built.appendleft(trial)
            else:
                yield from self._end(flow, trial, measurement)

    def _judge(self, trial: Trial, outcome: Outcome) -> Measurement | None:
        """The result of a run, or None if the program has to run again.

        Before a program is called wrong, the reference is computed by the unscheduled function. A result that was
        disturbed and matters is measured again.
        """
        if outcome is None:
            return None
        if isinstance(outcome, Failure):
            failed = trial.failed(outcome)
            if outcome.kind is not FailureKind.WRONG_RESULT or trial.plain:
                return failed
            self._references.doubt(trial.operator, self.server)
            trial.wrong = failed
            return None
        last = trial.measured(outcome, waited_for_builder=self.devices.exclusive)
        trial.runs += 1
        trial.fastest = faster_of(last, trial.fastest)
        again = must_repeat(last, trial.fastest, trial.runs, self._best(trial.operator))
        return None if again else trial.fastest

    def _build(self, flow: _Flow, ready: Collection[Speaker]) -> Iterator[Measurement]:
        """Take in what the building workers have answered."""
        for trial in list(flow.building):
            if trial.paused_at is not None or (self.devices.limits_builds and trial.worker not in ready):
                continue
            answer = answer_of(trial, self.server, trial.worker in ready, self.config)
            if answer is None:
                continue
            outcome = trial.failed(answer) if isinstance(answer, Failure) else self._next_stage(flow, trial, answer)
            if trial.stage is Stage.BUILT:
                flow.building.remove(trial)
                flow.built.append(trial)
                if not self.devices.exclusive:
                    self._end_worker(trial)  # what it built is in a file
            elif outcome is not None or trial.is_duplicate:
                self._free(trial)
                flow.building.remove(trial)
                if outcome is not None:
                    yield from self._end(flow, trial, outcome)

    def _next_stage(self, flow: _Flow, trial: Trial, answer: Answer) -> Measurement | None:
        """What follows a stage of building; the result if the code turns out to have one."""
        trial.at_work += answer["elapsed_seconds"]
        if trial.stage is Stage.ALLOCATING:
            trial.allocate_seconds, trial.is_allocated = answer["elapsed_seconds"], True
            trial.end_building()
            return None
        trial.build_seconds += answer["seconds"]
        if trial.stage is Stage.LOWERING:
            same = flow.duplicates.lowered(trial, answer["fingerprint"])
            if same is None and not trial.is_duplicate:
                trial.stage = Stage.GENERATING
                trial.send(self.devices.build_request(trial))
            return same
        trial.load_seconds = answer["load_seconds"]
        reference = self._references[trial.operator]
        request = self.devices.allocate_request(reference.layout) if reference.state is State.READY else None
        if request is None:
            trial.end_building()
        else:
            trial.stage, trial.plain = Stage.ALLOCATING, reference.plain
            trial.send(request)
        return None

    def _end(self, flow: _Flow, trial: Trial, measurement: Measurement) -> Iterator[Measurement]:
        """A result, also for the duplicates. Ending a worker takes time of a core: not while programs run alone."""
        if flow.keep:
            flow.finished.append((trial, measurement))
        elif self.devices.is_alone:
            flow.ended.append(trial)
        else:
            self._free(trial)
        best = self._best(trial.operator)
        if measurement.failure is None and (best is None or measurement.median < best):
            self.best[trial.operator] = measurement
        yield from flow.duplicates.finish(trial, measurement)

    def _best(self, operator: str) -> float | None:
        best = self.best.get(operator)
        return best.median if best else None

    def _no_device(self, trial: Trial, reason: str) -> Measurement:
        story = "; ".join([reason, *map(str, trial.mishaps)])
        return trial.failed(Failure(FailureKind.DEVICE_LOST, story))

    def _free(self, trial: Trial) -> None:
        self._end_worker(trial)
        self.devices.release(trial)

    def _end_worker(self, trial: Trial) -> None:
        if trial.worker is not None:
            self.devices.make_way(trial)
            self.server.discard(trial.worker)
            trial.worker = None

    def _recover(self, flow: _Flow, lost: ServerLostError) -> Iterator[Measurement]:
        """Start a new server; what was under way is tried once more."""
        trials = [trial for trial in flow.trials if trial.stage not in (Stage.DONE, Stage.DUPLICATE)]
        flow.building, flow.built, flow.running, flow.ended = [], deque(), [], []
        self._restart(lost)
        given_up = [trial for trial in trials if trial.attempts >= _MOST_ATTEMPTS]
        flow.waiting.extend(flow.duplicates.again(trial) for trial in trials if trial not in given_up)
        for trial in given_up:
            trial.worker = None
            yield from self._end(flow, trial, trial.failed(Failure(FailureKind.DEVICE_LOST, str(lost))))

    def _restart(self, lost: ServerLostError) -> None:
        """A new server. The workers of all trials ended with the old one."""
        self._failed_starts = 0 if self.server.is_ready else self._failed_starts + 1
        if self._failed_starts == _MOST_ATTEMPTS:
            raise BuildError(
                f"{lost} before it could build a program, {_MOST_ATTEMPTS} times in a row: what it printed says why, "
                "and 'slipstream doctor' checks the installation"
            ) from lost
        logger.warning("%s; starting another", lost)
        self.server.close()
        self._references.lose()
        self._start_server()

    def _start_server(self) -> None:
        self.server = self.devices.start_server(PREPARE, options_for(self.target), self.config.memory_bytes)
        self.devices.attach(self.server)
