"""Measuring on this machine's CPU.

Building and running take turns: first as many programs as fit a batch are built, on all cores; then they run, one
at a time, while nothing else of ours does. Each program has a process of its own, forked from a warm server.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from slipstream.machine.target import Target
from slipstream.measure.config import MeasureConfig
from slipstream.measure.devices.cpu import TICK_SECONDS, Runner
from slipstream.measure.reference import References
from slipstream.measure.summary import all_failed
from slipstream.measure.timing.noise import Drift
from slipstream.measure.timing.racing import runs_per_sample
from slipstream.measure.timing.settling import Settling, near_ties, settle
from slipstream.measure.trial import Trial
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement
from slipstream.processes.fork_server import ServerLostError

logger = logging.getLogger(__name__)

_MOST_ATTEMPTS = 2


@dataclass(frozen=True)
class Settled:
    """The winner among finalists. `decided`: fastest at `confidence`, or slower by less than matters."""

    winner: Measurement
    decided: bool
    confidence: float
    finalists: tuple[Measurement, ...]


class LocalMeasurer:
    """Measures programs of the operators in `references`: key -> the unscheduled function (see `reference_text`).

    Also a context manager; `close` ends all its processes. Not for use from several threads at once.
    """

    def __init__(self, target: Target, references: Mapping[str, str], config: MeasureConfig | None = None) -> None:
        self.target = target
        self.config = config or MeasureConfig()
        self.best: dict[str, Measurement] = {}
        self._workers = self.config.workers or target.threads
        self._runner = self._make_runner(References(references, self.config))
        self._known: dict[str, Measurement | Trial] = {}
        self._closed = False

    def _make_runner(self, references: References) -> Runner:
        return Runner(self.target, references, self.config)

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._runner.close()

    @property
    def drift(self) -> Drift:
        """How the reference kernel has been doing in this session."""
        return self._runner.drift

    def measure(self, programs: Iterable[Candidate]) -> Iterator[Measurement]:
        """Results as they become known. Programs are taken from `programs` only when there is room to build them."""
        waiting: deque[Trial] = deque()
        building: list[Trial] = []
        source = iter(programs)
        results: list[Measurement] = []
        batch = self._workers
        try:
            while True:
                built: list[Trial] = []
                try:
                    for measurement in self._turn(source, waiting, building, built, batch):
                        results.append(without_module(measurement))
                        yield measurement
                    if not built and not waiting:
                        break
                except ServerLostError as lost:
                    yield from self._recover([*building, *built], waiting, lost)
                    self._discard(building)
                    building.clear()
                finally:
                    self._discard(built)
                batch = min(2 * batch, self.config.batch)
        finally:
            self._discard(building)
            for trial in waiting:
                self._known.pop(digest(trial.program), None)
        if warning := all_failed(results):
            logger.warning("%s", warning)

    def settle(
        self, measurements: Iterable[Measurement], rng: np.random.Generator, settling: Settling | None = None
    ) -> Settled | None:
        """Sample the near-ties among one operator's measurements again, in turn, until the winner is known.

        Should that fail twice because the server dies, the fastest as measured wins, undecided.
        """
        settling = settling or Settling()
        good = [m for m in measurements if m.failure is None and not m.duplicate and m.samples]
        finalists = [good[i] for i in near_ties([m.median for m in good], settling)]
        if not finalists:
            return None
        for _ in range(_MOST_ATTEMPTS):
            trials = [Trial(m.program) for m in finalists]
            try:
                return self._settle(trials, finalists, settling, rng)
            except ServerLostError as lost:
                self._restart(trials, lost)
            finally:
                self._discard(trials)
        return Settled(finalists[0], decided=False, confidence=settling.confidence, finalists=tuple(finalists))

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
        with self._runner.quiet([]):
            runs = [(trial, self._run(trial)) for trial in built]
            remaining = [(trial, measurement) for trial, measurement in runs if measurement.failure is None]
            return self._compare(remaining, different(trials), settling, rng)

    def _compare(
        self, remaining: list[tuple[Trial, Measurement]], finalists: int, settling: Settling, rng: np.random.Generator
    ) -> Settled | None:
        """Sample programs that have been run, in turn."""
        if len(remaining) < finalists:
            logger.warning("%d finalists failed when run again", finalists - len(remaining))
        if not remaining:
            return None
        numbers = [runs_per_sample(m.median, self.config.racing) for _, m in remaining]

        def take(i: int) -> float:
            return self._take_sample(remaining[i][0], numbers[i])

        standing = settle(take, len(remaining), settling, rng)
        settled = [
            replace(m, samples=standing.rounds[i] or m.samples, stopped_early=False)
            for i, (_, m) in enumerate(remaining)
        ]
        winner = settled[standing.winner]
        self.best[winner.program.operator] = winner
        return Settled(winner, standing.decided, settling.confidence, tuple(settled))

    def _take_sample(self, trial: Trial, number: int) -> float:
        self._runner.send(trial, {"sample": {"number": number, "repeat": 1}})
        trial.deadline = time.monotonic() + self.config.run_seconds
        answer = self._runner.wait_for(trial)
        return math.inf if isinstance(answer, Failure) else float(answer["samples"][0])

    def _turn(
        self,
        source: Iterator[Candidate],
        waiting: deque[Trial],
        building: list[Trial],
        built: list[Trial],
        batch: int,
    ) -> Iterator[Measurement]:
        yield from self._build(source, waiting, building, built, batch)
        if built:
            with self._runner.quiet(building):
                for trial in built:
                    yield from self._finish(trial, self._run(trial))

    def _run(self, trial: Trial) -> Measurement:
        best = self.best.get(trial.program.operator)
        return self._runner.run(trial, best.median if best else None)

    def _build(
        self,
        source: Iterator[Candidate],
        waiting: deque[Trial],
        building: list[Trial],
        built: list[Trial],
        batch: int,
    ) -> Iterator[Measurement]:
        """Build until `batch` programs are, or none is left; yields those that are finished by then already.

        What is under way by then stays in `building` and goes on in the next call, so that no core waits for the
        slowest program of a batch.
        """
        exhausted = False
        while len(built) < batch:
            while (waiting or not exhausted) and len(building) < self._workers:
                trial = waiting.popleft() if waiting else None
                if trial is None:
                    program = next(source, None)
                    exhausted = program is None
                    if program is None:
                        break
                    admitted = self._admit(program)
                    if not isinstance(admitted, Trial):
                        if admitted is not None:
                            yield admitted
                        continue
                    trial = admitted
                building.append(trial)
                self._runner.begin(trial)
            if not building:
                return
            workers = [t.worker for t in building if t.worker is not None]
            ready = self._runner.server.poll(workers, TICK_SECONDS)
            for trial in list(building):
                outcome = self._advance(trial, trial.worker in ready)
                if trial.stage == "built":
                    building.remove(trial)
                    built.append(trial)
                elif outcome is not None or trial.stage == "twin":
                    # First of all: if the server turns out to be gone, the trial must still be among those building.
                    self._discard([trial])
                    building.remove(trial)
                    if outcome is not None:
                        yield from self._finish(trial, outcome)

    def _admit(self, program: Candidate) -> Trial | Measurement | None:
        """A new trial; or the result, if the same text has one; None if it waits for one that is under way."""
        known = self._known.get(digest(program))
        if isinstance(known, Measurement):
            return replace(known, program=program, duplicate=True)
        if known is not None:
            known.twins.append(program)
            return None
        trial = self._known[digest(program)] = Trial(program)
        return trial

    def _advance(self, trial: Trial, ready: bool) -> Measurement | None:
        """Take in what a building worker has to say; a measurement is returned if that was its last word."""
        assert trial.worker is not None
        if not ready:
            broken = self._runner.check_limits(trial)
            return trial.failed(broken) if broken else None
        answer = self._runner.receive(trial)
        if isinstance(answer, Failure):
            return trial.failed(answer)
        trial.build_seconds += answer["seconds"]
        trial.at_work += answer["elapsed_seconds"]
        if trial.stage == "lowering":
            trial.fingerprint = f"{trial.program.operator}:{answer['fingerprint']}"
            same = self._known.setdefault(trial.fingerprint, trial)
            if same is not trial:
                return self._join(trial, same)
            trial.stage = "generating"
            self._runner.generate(trial)
        else:
            trial.load_seconds = answer["load_seconds"]
            trial.stage = "built"
            trial.built_after = time.monotonic() - trial.began
        return None

    def _join(self, trial: Trial, same: Trial | Measurement) -> Measurement | None:
        """The trial's code has been seen before: let it share the result, now or when there is one."""
        if isinstance(same, Measurement):
            return replace(same, program=trial.program, duplicate=True)
        same.twins += [trial.program, *trial.twins]
        self._known[digest(trial.program)] = same
        trial.stage = "twin"
        return None

    def _finish(self, trial: Trial, measurement: Measurement) -> Iterator[Measurement]:
        """Remember a result, and give it to everybody who waits for it."""
        for key in (digest(trial.program), trial.fingerprint):
            if key and self._known.get(key) in (None, trial):
                self._known[key] = without_module(measurement)
        operator = trial.program.operator
        best = self.best.get(operator)
        if measurement.failure is None and (best is None or measurement.median < best.median):
            self.best[operator] = measurement
        trial.stage = "done"
        yield measurement
        for twin in trial.twins:
            self._known[digest(twin)] = without_module(measurement)
            yield replace(measurement, program=twin, duplicate=True)

    def _discard(self, turn: list[Trial]) -> None:
        for trial in turn:
            if trial.worker is not None:
                self._runner.server.discard(trial.worker)
                trial.worker = None
            # Whoever asks for one of these again must not wait for a trial that has ended without a result.
            for key in (trial.fingerprint, *map(digest, (trial.program, *trial.twins))):
                if self._known.get(key) is trial:
                    del self._known[key]

    def _recover(self, turn: list[Trial], waiting: deque[Trial], lost: ServerLostError) -> Iterator[Measurement]:
        """Start a new server; what was under way is tried once more."""
        self._restart(turn, lost)
        for trial in turn:
            if trial.stage in ("done", "twin"):
                continue
            if trial.attempts >= _MOST_ATTEMPTS:
                yield from self._finish(trial, trial.failed(Failure(FailureKind.DEVICE_LOST, str(lost))))
            else:
                again = Trial(trial.program, attempts=trial.attempts, twins=trial.twins)
                self._known.update((digest(program), again) for program in (trial.program, *trial.twins))
                waiting.append(again)
                trial.stage = "done"

    def _restart(self, trials: list[Trial], lost: ServerLostError) -> None:
        """A new server; the workers of `trials` went with the old one."""
        logger.warning("%s; starting another", lost)
        self._runner.restart()
        for trial in trials:
            trial.worker = None


def digest(program: Candidate) -> str:
    """What equal programs have in common."""
    return hashlib.sha256(f"{program.operator}\0{program.module}".encode()).hexdigest()


def different(trials: list[Trial]) -> int:
    """How many there are without those whose code turned out to be another's."""
    return sum(trial.stage != "twin" for trial in trials)


def without_module(measurement: Measurement) -> Measurement:
    """What is remembered of thousands of programs must not hold their text."""
    return replace(measurement, program=replace(measurement.program, module=""))
