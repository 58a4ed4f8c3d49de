"""The processes of a session on a GPU: builders that never touch CUDA, and one process that has the device."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slipstream.measure.channel import ChannelClosedError
from slipstream.measure.config import MeasureConfig
from slipstream.measure.gpu_process import GpuProcess
from slipstream.measure.processes import ServerLostError
from slipstream.measure.references import References
from slipstream.measure.runner import Runner
from slipstream.measure.trial import Trial, failure_of_end
from slipstream.measure.types import Failure, FailureKind, Measurement
from slipstream.target import Target

logger = logging.getLogger(__name__)

# The first program of a process also pays for its start and its CUDA context.
_CONTEXT_SECONDS = 60.0
# Some roundings of float16 on the way, whatever type the result has.
_HALF_TOLERANCE = 16 * 2.0**-10


class GpuRunner(Runner):
    """A fork server for builders, and a worker that runs what they built, one program at a time.

    A kernel that reads a wrong address leaves its process unable to use the device at all, and one that hangs cannot
    be stopped: whatever goes wrong in a run, the process is replaced, and the next program finds a clean one.
    """

    def __init__(self, target: Target, references: References, config: MeasureConfig) -> None:
        super().__init__(target, references, config)
        self._device: GpuProcess | None = GpuProcess()
        self._spare: GpuProcess | None = None

    def close(self) -> None:
        super().close()
        for process in (self._device, self._spare):
            if process is not None:
                process.close()
        self._device = self._spare = None

    def restart(self) -> None:
        super().restart()
        self.replace_device()  # what it may be running belongs to nobody any more

    def generate(self, trial: Trial) -> None:
        trial.library = str(self._scratch / f"{trial.worker.name if trial.worker else 0}.so")
        self.send(trial, {"generate_library": {"path": trial.library, "cpu_seconds": self._config.build_cpu_seconds}})

    @property
    def _scratch(self) -> Path:
        assert self.server.scratch is not None
        return self.server.scratch

    @property
    def device(self) -> GpuProcess:
        """The process that has the device."""
        if self._device is None:
            self._device, self._spare = self._spare or GpuProcess(), None
        return self._device

    def start_run(self, trial: Trial, best: float | None, *, keep: bool = False) -> Failure | None:
        """Hand a built program to the device; why not, if its operator has no reference."""
        operator = trial.program.operator
        self._references.wait(self.server)
        layout = self._references.layout(operator)
        if isinstance(layout, Failure):
            return layout
        device = self.device
        trial.stage = "running"
        trial.run_began = time.monotonic()
        trial.deadline = trial.run_began + self._config.run_seconds + (_CONTEXT_SECONDS if device.is_new else 0.0)
        device.is_new = False
        request = {
            "operator": operator,
            "library": trial.library,
            "arena": f"/proc/{os.getpid()}/fd/{self._references.arena(operator)}",
            "layout": layout,
            "best": best,
            "tolerance": max(self._config.tolerance, _HALF_TOLERANCE if self._target.is_half else 0.0),
            "racing": asdict(self._config.racing),
            "keep": keep,
        }
        with suppress(ChannelClosedError):  # its end is noticed like any other
            device.channel.send({"launch": request})
        return None

    def finish_run(self, trial: Trial) -> Measurement:
        """What the device has to say about the program it was handed."""
        answer = self._answer(trial)
        if isinstance(answer, Failure):
            return trial.failed(answer)
        elapsed = time.monotonic() - trial.run_began
        worked = answer["allocate_seconds"] + answer["run_seconds"]
        return Measurement(
            trial.program,
            samples=tuple(answer["samples"]),
            stopped_early=answer["stopped_early"],
            verified=True,
            build_seconds=trial.build_seconds,
            run_seconds=answer["run_seconds"],
            started_at=trial.started_at,
            allocate_seconds=answer["allocate_seconds"],
            overhead_seconds=max(0.0, elapsed - worked),
        )

    def run(self, trial: Trial, best: float | None, *, keep: bool = False) -> Measurement:
        """Run one program and wait for it."""
        if failure := self.start_run(trial, best, keep=keep):
            return trial.failed(failure)
        self._wait(trial)
        return self.doubt(trial, self.finish_run(trial), best)

    def doubt(self, trial: Trial, measurement: Measurement, best: float | None) -> Measurement:
        """Before a program is called wrong, its judge is questioned: the unscheduled function has the last word."""
        if measurement.failure is None or measurement.failure.kind is not FailureKind.WRONG_RESULT:
            return measurement
        if not self._references.recompute_plainly(trial.program.operator, self.server):
            return measurement
        self.replace_device()
        return self.run(trial, best)

    def sample(self, trial: Trial, number: int, repeat: int) -> list[float]:
        """More samples of a program that was kept; nothing if it fails now."""
        trial.deadline = time.monotonic() + self._config.run_seconds
        with suppress(ChannelClosedError):
            self.device.channel.send({"launch_again": {"library": trial.library, "number": number, "repeat": repeat}})
        self._wait(trial)
        answer = self._answer(trial)
        return [] if isinstance(answer, Failure) else [float(seconds) for seconds in answer["samples"]]

    def drain(self, trial: Trial) -> None:
        """Let the device finish a program whose result nobody waits for any more."""
        with suppress(ServerLostError):
            self._wait(trial)
            self._answer(trial)

    def overdue(self, trial: Trial) -> bool:
        return time.monotonic() > trial.deadline

    def replace_device(self) -> None:
        """End the process that has the device; the next run gets a new one."""
        if self._device is not None:
            self._device.close()
        self._device, self._spare = self._spare or GpuProcess(), GpuProcess()

    def forget(self, trial: Trial) -> None:
        """The library of a finished trial is not needed any more."""
        if trial.library:
            Path(trial.library).unlink(missing_ok=True)

    def _wait(self, trial: Trial) -> None:
        while self.device not in self.server.poll([self.device], 0.05) and not self.overdue(trial):
            pass

    def _answer(self, trial: Trial) -> dict[str, Any] | Failure:
        device = self.device
        if self.overdue(trial) and device not in self.server.poll([device], 0.0):
            failure = Failure(FailureKind.RUN_TIMEOUT, f"took longer than {self._config.run_seconds:g} s")
            self.replace_device()
            return failure
        try:
            answer = device.channel.receive(1.0)
        except (ChannelClosedError, TimeoutError):
            failure = failure_of_end(device.end(), device.last_lines(), False, sys.maxsize)
            self.replace_device()
            return failure
        if "failure" not in answer:
            return answer
        failure = Failure(FailureKind(answer["failure"]), answer["message"], device.last_lines())
        if failure.kind is not FailureKind.WRONG_RESULT:
            self.replace_device()
        return failure
