"""The processes of a local session: starting a trial's worker, talking to it, and enforcing the limits."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from slipstream.machine.target import Target
from slipstream.measure.config import MeasureConfig
from slipstream.measure.reference import References
from slipstream.measure.timing.noise import MOST_WAITING, Drift
from slipstream.measure.timing.repeat import look_again
from slipstream.measure.trial import Trial, failure_of_end
from slipstream.measure.types import Failure, FailureKind, Measurement
from slipstream.processes.channel import ChannelClosedError
from slipstream.processes.fork_server import ForkServer, ServerLostError, WorkerProcess

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.05
_PROBE_SECONDS = 1.0


class Runner:
    """One fork server, the operators' references and the reference kernel."""

    def __init__(self, target: Target, references: References, config: MeasureConfig) -> None:
        self.drift = Drift()
        self.server = ForkServer(target, config.memory_bytes)
        self._target = target
        self._references = references
        self._config = config
        self._probe: WorkerProcess | None = None
        self._probed_at = -math.inf

    def close(self) -> None:
        self._references.close()
        self.server.close()

    def restart(self) -> None:
        """A new server in place of one that is gone."""
        self.server.close()
        self._probe = None
        self._references.forget_workers()
        self.server = ForkServer(self._target, self._config.memory_bytes)

    def begin(self, trial: Trial) -> None:
        """Fork a worker for the trial; the operator's reference gets one of its own if it is not known."""
        arena = self._references.start(trial.program.operator, self.server)
        trial.attempts += 1
        trial.start(self.server.fork(arena), self._config.build_seconds)
        self.send(trial, {"lower": {"module": trial.program.module}})

    def generate(self, trial: Trial) -> None:
        """Go on from lowered code to machine code."""
        self.send(trial, {"generate": {}})

    @contextmanager
    def quiet(self, building: list[Trial]) -> Iterator[None]:
        """Nothing else of ours runs in here: references are waited for, builders stand still meanwhile."""
        self._references.wait(self.server)
        workers = [trial.worker for trial in building if trial.worker is not None]
        self.server.pause(workers)
        began = time.monotonic()
        try:
            self._time_probe()
            yield
        finally:
            with suppress(ServerLostError):  # then there is nothing to resume
                self.server.resume(workers)
            for trial in building:
                trial.stood_still(time.monotonic() - began)

    def run(self, trial: Trial, best: float | None) -> Measurement:
        return look_again(lambda: self._run_judged(trial, best), best)

    def _run_judged(self, trial: Trial, best: float | None) -> Measurement:
        measurement = self._run_once(trial, best)
        if measurement.failure is None or measurement.failure.kind is not FailureKind.WRONG_RESULT:
            return measurement
        # Before a program is called wrong, its judge is questioned: the unscheduled function has the last word.
        doubted = self._references.recompute_plainly(trial.program.operator, self.server)
        return self._run_once(trial, best) if doubted else measurement

    def _run_once(self, trial: Trial, best: float | None) -> Measurement:
        assert trial.worker is not None
        operator = trial.program.operator
        trial.stage = "running"
        began = time.monotonic()
        trial.deadline = began + self._config.run_seconds
        layout = self._references.layout(operator)
        if isinstance(layout, Failure):
            return trial.failed(layout)
        request = {
            "layout": layout,
            "best": best,
            "tolerance": self._config.tolerance,
            "racing": asdict(self._config.racing),
        }
        self.send(trial, {"run": request})
        answer = self.wait_for(trial)
        if isinstance(answer, Failure):
            return trial.failed(answer)
        elapsed = time.monotonic() - began
        worked = answer["allocate_seconds"] + answer["run_seconds"]
        return Measurement(
            trial.program,
            samples=tuple(answer["samples"]),
            stopped_early=answer["stopped_early"],
            noisy=self.drift.is_busy or answer["waited_seconds"] > MOST_WAITING * answer["run_seconds"],
            verified=True,
            build_seconds=trial.build_seconds,
            run_seconds=answer["run_seconds"],
            started_at=trial.started_at,
            load_seconds=trial.load_seconds,
            allocate_seconds=answer["allocate_seconds"],
            overhead_seconds=max(0.0, trial.built_after - max(0.0, trial.at_work)) + max(0.0, elapsed - worked),
        )

    def send(self, trial: Trial, request: dict[str, Any]) -> None:
        assert trial.worker is not None
        with suppress(ChannelClosedError):  # its end is noticed like any other
            trial.worker.channel.send(request)

    def receive(self, trial: Trial) -> dict[str, Any] | Failure:
        assert trial.worker is not None
        try:
            answer = trial.worker.channel.receive(1.0)
        except (ChannelClosedError, TimeoutError):
            end = self.server.end_of(trial.worker)
            stderr = trial.worker.last_lines()
            limit = self._config.memory_bytes + trial.worker.shared_bytes
            return failure_of_end(end, stderr, trial.building, limit)
        if "failure" in answer:
            return Failure(FailureKind(answer["failure"]), answer["message"], trial.worker.last_lines())
        return answer

    def wait_for(self, trial: Trial) -> dict[str, Any] | Failure:
        """The answer of a worker that has the machine to itself."""
        assert trial.worker is not None
        while trial.worker not in self.server.poll([trial.worker], TICK_SECONDS):
            if broken := self.check_limits(trial):
                return broken
        return self.receive(trial)

    def check_limits(self, trial: Trial) -> Failure | None:
        assert trial.worker is not None
        if trial.worker.used_bytes() > self._config.memory_bytes:
            kind = FailureKind.OUT_OF_MEMORY
            message = f"used more than {self._config.memory_bytes >> 20} MB"
        elif time.monotonic() > trial.deadline:
            kind = FailureKind.BUILD_TIMEOUT if trial.building else FailureKind.RUN_TIMEOUT
            limit = self._config.build_seconds if trial.building else self._config.run_seconds
            message = f"took longer than {limit:g} s"
        else:
            return None
        stderr = trial.worker.last_lines()
        self.server.kill_and_wait(trial.worker)
        return Failure(kind, message, stderr)

    def _time_probe(self) -> None:
        """Time the reference kernel if that was not done lately."""
        if time.monotonic() - self._probed_at < _PROBE_SECONDS:
            return
        try:
            if self._probe is None:
                self._probe = self.server.fork()
            self._probe.channel.send({"probe": {}})
            samples = self._probe.channel.receive(self._config.run_seconds)["samples"]
        except (ChannelClosedError, TimeoutError, KeyError):
            if self._probe is not None:
                self.server.discard(self._probe)
            self._probe = None
            return
        self._probed_at = time.monotonic()
        slower = self.drift.add(samples)
        if self.drift.is_busy:
            logger.info("the reference kernel runs %.0f %% slower than usual: the machine is busy", 100 * slower)
