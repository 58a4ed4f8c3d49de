"""One program on its way through building and running, and what its worker answered."""

from __future__ import annotations

import math
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slipstream.measure.config import MeasureConfig
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement
from slipstream.processes.channel import ChannelClosedError
from slipstream.processes.fork_server import End, ForkServer, WorkerProcess

_MEMORY_WORDS = ("bad_alloc", "MemoryError", "out of memory", "Cannot allocate memory")
_SIGKILL = -9
_LOOK_SECONDS = 0.05  # between two looks at what a worker uses, however often others answer

Answer = dict[str, Any]


class Stage(StrEnum):
    """How far a program has come. A `DUPLICATE` waits for the result of another with the same code."""

    NEW = "new"
    LOWERING = "lowering"
    GENERATING = "generating"
    ALLOCATING = "allocating"
    BUILT = "built"
    RUNNING = "running"
    DUPLICATE = "duplicate"
    DONE = "done"


@dataclass(eq=False)
class Trial:
    """State of a program between being admitted and being answered. `duplicates` get its result as well.

    It was built `built_after` seconds after it was taken up; its worker was `at_work` during so many of them, and has
    been paused since `paused_at`, if that is a time. `is_allocated`: the arguments of its next run are in place.
    `library` is the file it was built into, for a device in another process. Its results were compared with those of
    the unscheduled function if `plain`; `wrong` is the verdict before that. It ran `runs` times; `fastest` is the best
    of them so far. `attempts` counts the fork servers it was built in, `mishaps` are failures of remote devices while
    they had the program.
    """

    program: Candidate
    attempts: int = 0
    worker: WorkerProcess | None = None
    stage: Stage = Stage.NEW
    deadline: float = 0.0
    build_limit: float = math.inf
    build_core_limit: float = math.inf
    next_look: float = 0.0
    started_at: float = 0.0
    began: float = 0.0
    build_seconds: float = 0.0
    load_seconds: float = 0.0
    at_work: float = 0.0
    built_after: float = 0.0
    allocate_seconds: float = 0.0
    is_allocated: bool = False
    paused_at: float | None = None
    fingerprint: str = ""
    library: str = ""
    plain: bool = False
    run_began: float = 0.0
    lost_run_seconds: float = 0.0
    runs: int = 0
    fastest: Measurement | None = None
    wrong: Measurement | None = None
    duplicates: list[Candidate] = field(default_factory=list)
    mishaps: list[Any] = field(default_factory=list)

    @property
    def operator(self) -> str:
        return self.program.operator

    @property
    def is_building(self) -> bool:
        return self.stage in (Stage.LOWERING, Stage.GENERATING, Stage.ALLOCATING)

    @property
    def is_duplicate(self) -> bool:
        return self.stage is Stage.DUPLICATE

    def start_building(self, worker: WorkerProcess, limit: float, core_limit: float = math.inf) -> None:
        """May take `limit` seconds, and `core_limit` seconds of a core; on a busy machine these take longer."""
        self.attempts += 1
        self.worker, self.stage = worker, Stage.LOWERING
        self.started_at, self.began = time.time(), time.monotonic()
        self.deadline, self.build_limit, self.build_core_limit = self.began + limit, limit, core_limit

    def send(self, request: dict[str, Any]) -> None:
        """Send its worker a request; that a worker has ended is noticed when its answer is read."""
        assert self.worker is not None
        with suppress(ChannelClosedError):
            self.worker.channel.send(request)

    def end_building(self) -> None:
        self.stage, self.built_after = Stage.BUILT, time.monotonic() - self.began

    def start_running(self, seconds: float) -> None:
        self.stage, self.run_began = Stage.RUNNING, time.monotonic()
        self.deadline = self.run_began + seconds

    def was_paused(self, seconds: float) -> None:
        """Its worker was paused for so long: that counts against no limit and is no overhead."""
        self.began += seconds
        self.deadline += seconds
        self.at_work -= seconds

    def failed(self, failure: Failure) -> Measurement:
        return Measurement(
            self.program,
            failure=failure,
            build_seconds=self.build_seconds,
            run_seconds=self.lost_run_seconds,
            started_at=self.started_at,
        )

    def measured(self, answer: Answer, *, waited_for_builder: bool) -> Measurement:
        """The measurement that a device's answer stands for. Time between lowering and running is overhead where
        nothing else could run meanwhile: `waited_for_builder`."""
        elapsed = time.monotonic() - self.run_began
        overhead = max(0.0, elapsed - answer["allocate_seconds"] - answer["run_seconds"])
        if waited_for_builder:
            overhead += max(0.0, self.built_after - max(0.0, self.at_work))
        return Measurement(
            self.program,
            samples=tuple(answer["samples"]),
            stopped_early=answer["stopped_early"],
            noisy=answer["noisy"],
            verified=True,
            build_seconds=self.build_seconds,
            run_seconds=answer["run_seconds"] + self.lost_run_seconds,
            started_at=self.started_at,
            load_seconds=self.load_seconds,
            allocate_seconds=self.allocate_seconds + answer["allocate_seconds"],
            overhead_seconds=overhead,
        )


def answer_of(trial: Trial, server: ForkServer, ready: bool, config: MeasureConfig) -> Answer | Failure | None:
    """What a trial's worker answered, or the limit it exceeded; None while it works. `ready`: it has sent something."""
    worker = trial.worker
    assert worker is not None
    if not ready:
        if time.monotonic() < trial.next_look:
            return None
        trial.next_look = time.monotonic() + _LOOK_SECONDS
        failure = _exceeded(trial, worker, config)
        if failure is not None:
            server.kill_and_wait(worker)
        return failure
    try:
        answer = worker.channel.receive(1.0)
    except (ChannelClosedError, TimeoutError):
        end = server.end_of(worker)
        return failure_of_end(end, worker.last_lines(), trial.is_building, config.memory_bytes + worker.shared_bytes)
    return failure_in(answer, worker.last_lines()) if "failure" in answer else answer


def failure_in(answer: Answer, stderr: str) -> Failure:
    """The failure that a worker answered with."""
    return Failure(FailureKind(answer["failure"]), answer["message"], stderr)


def _exceeded(trial: Trial, worker: WorkerProcess, config: MeasureConfig) -> Failure | None:
    if worker.used_bytes() > config.memory_bytes:
        message = f"used more than {config.memory_bytes >> 20} MB"
        return Failure(FailureKind.OUT_OF_MEMORY, message, worker.last_lines())
    if trial.is_building and worker.used_seconds() > trial.build_core_limit:
        message = f"took longer than {trial.build_core_limit:g} s of a core"
        return Failure(FailureKind.BUILD_TIMEOUT, message, worker.last_lines())
    if time.monotonic() <= trial.deadline:
        return None
    kind = FailureKind.BUILD_TIMEOUT if trial.is_building else FailureKind.RUN_TIMEOUT
    seconds = trial.build_limit if trial.is_building else config.run_seconds
    return Failure(kind, f"took longer than {seconds:g} s", worker.last_lines())


def failure_of_end(end: End, stderr: str, building: bool, memory_bytes: int) -> Failure:
    """Why a process ended that was not killed by its owner."""
    used_up = end.peak_bytes > memory_bytes and end.status < 0
    if used_up or end.status == _SIGKILL or any(word in stderr for word in _MEMORY_WORDS):
        return Failure(FailureKind.OUT_OF_MEMORY, f"ran out of memory, {end.reason}", stderr)
    if end.status == -signal.SIGXCPU and building:
        return Failure(FailureKind.BUILD_TIMEOUT, "used up its processor time", stderr)
    doing = "building" if building else "running"
    return Failure(FailureKind.CRASH, f"{end.reason} while {doing}", stderr)
