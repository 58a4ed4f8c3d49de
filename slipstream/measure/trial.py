"""One program on its way through a worker, and what its worker's end says about it."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

from slipstream.measure.devices.gpu_process import HeldGpu
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement
from slipstream.processes.fork_server import End, WorkerProcess

MEMORY_WORDS = ("bad_alloc", "MemoryError", "out of memory", "Cannot allocate memory")
_SIGKILL = -9


@dataclass(eq=False)
class Trial:
    """State of a program between being taken up and being answered. `twins` wait for its result.

    It was built `built_after` seconds after it was taken up; its worker was `at_work` during so many of them.
    On a GPU its `library` runs on `gpu`, and its results are compared with the unscheduled function's if `plain`.
    """

    program: Candidate
    attempts: int = 0
    worker: WorkerProcess | None = None
    stage: str = "new"
    deadline: float = 0.0
    started_at: float = 0.0
    began: float = 0.0
    build_seconds: float = 0.0
    load_seconds: float = 0.0
    at_work: float = 0.0
    built_after: float = 0.0
    fingerprint: str = ""
    library: str = ""
    gpu: HeldGpu | None = None
    plain: bool = False
    run_began: float = 0.0
    twins: list[Candidate] = field(default_factory=list)

    def start(self, worker: WorkerProcess, limit: float) -> None:
        self.worker, self.stage = worker, "lowering"
        self.started_at, self.began = time.time(), time.monotonic()
        self.deadline = self.began + limit

    def stood_still(self, seconds: float) -> None:
        """Its worker was paused for so long: that counts against no limit and is nobody's overhead."""
        self.began += seconds
        self.deadline += seconds
        self.at_work -= seconds

    def failed(self, failure: Failure) -> Measurement:
        return Measurement(self.program, failure=failure, build_seconds=self.build_seconds, started_at=self.started_at)

    @property
    def building(self) -> bool:
        return self.stage in ("lowering", "generating")


def failure_of_end(end: End, stderr: str, building: bool, memory_bytes: int) -> Failure:
    """Why a worker that nobody killed is gone."""
    used_up = end.peak_bytes > memory_bytes and end.status < 0
    if used_up or end.status == _SIGKILL or any(word in stderr for word in MEMORY_WORDS):
        return Failure(FailureKind.OUT_OF_MEMORY, f"ran out of memory, {end.reason}", stderr)
    if end.status == -signal.SIGXCPU and building:
        return Failure(FailureKind.BUILD_TIMEOUT, "used up its processor time", stderr)
    doing = "building" if building else "running"
    return Failure(FailureKind.CRASH, f"{end.reason} while {doing}", stderr)
