"""The processes of a session on GPUs: builders that never touch CUDA, and for each GPU one process that has it."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slipstream.machine.cuda import equal_gpus, find_devices, this_device
from slipstream.machine.target import Target
from slipstream.measure.config import MeasureConfig
from slipstream.measure.devices.cpu import Runner
from slipstream.measure.devices.gpu_process import HeldGpu
from slipstream.measure.reference import References
from slipstream.measure.trial import Trial, failure_of_end
from slipstream.measure.types import Failure, FailureKind, Measurement
from slipstream.processes.channel import ChannelClosedError
from slipstream.processes.fork_server import ServerLostError

logger = logging.getLogger(__name__)

# The first program of a process also pays for its start and its CUDA context.
_CONTEXT_SECONDS = 60.0
# Some roundings of float16 on the way, whatever type the result has.
_HALF_TOLERANCE = 16 * 2.0**-10


class GpuRunner(Runner):
    """A fork server for builders, and on each GPU a worker that runs what they built, one program at a time.

    A kernel that reads a wrong address leaves its process unable to use the device at all, and one that hangs cannot
    be stopped: whatever goes wrong in a run, the process is replaced, and the next program finds a clean one.
    """

    def __init__(self, target: Target, references: References, config: MeasureConfig) -> None:
        if not config.gpus:
            this_device()  # says what to do where there is none
        super().__init__(target, references, config)
        self.gpus = [HeldGpu(name) for name in config.gpus or equal_gpus(find_devices())]

    def close(self) -> None:
        super().close()
        for gpu in self.gpus:
            gpu.close()

    def restart(self) -> None:
        super().restart()
        for gpu in self.gpus:
            gpu.replace()  # what it may be running belongs to nobody any more

    def generate(self, trial: Trial) -> None:
        trial.library = str(self._scratch / f"{trial.worker.name if trial.worker else 0}.so")
        self.send(trial, {"generate_library": {"path": trial.library, "cpu_seconds": self._config.build_cpu_seconds}})

    @property
    def _scratch(self) -> Path:
        assert self.server.scratch is not None
        return self.server.scratch

    def start_run(self, trial: Trial, gpu: HeldGpu, best: float | None, *, keep: bool = False) -> Failure | None:
        """Hand a built program to a GPU; why not, if its operator has no reference."""
        operator = trial.program.operator
        self._references.wait(self.server)
        layout = self._references.layout(operator)
        if isinstance(layout, Failure):
            return layout
        process = gpu.process
        trial.gpu, trial.stage, trial.plain = gpu, "running", self._references.is_plain(operator)
        trial.run_began = time.monotonic()
        trial.deadline = trial.run_began + self._config.run_seconds + (_CONTEXT_SECONDS if process.is_new else 0.0)
        process.is_new = False
        request = {
            # Under this name a GPU keeps the operator's arguments: results computed anew are another operator's.
            "operator": f"{operator} plain" if trial.plain else operator,
            "library": trial.library,
            "arena": f"/proc/{os.getpid()}/fd/{self._references.arena(operator)}",
            "layout": layout,
            "best": best,
            "tolerance": max(self._config.tolerance, _HALF_TOLERANCE if self._target.is_half else 0.0),
            "racing": asdict(self._config.racing),
            "keep": keep,
        }
        with suppress(ChannelClosedError):  # its end is noticed like any other
            process.channel.send({"launch": request})
        return None

    def finish_run(self, trial: Trial) -> Measurement:
        """What the GPU has to say about the program it was handed."""
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
        """Run one program, where it ran before or on the first GPU, and wait for it."""
        if failure := self.start_run(trial, trial.gpu or self.gpus[0], best, keep=keep):
            return trial.failed(failure)
        self._wait(trial)
        return self.doubt(trial, self.finish_run(trial), best)

    def doubt(self, trial: Trial, measurement: Measurement, best: float | None) -> Measurement:
        """Before a program is called wrong, its judge is questioned: the unscheduled function has the last word."""
        if measurement.failure is None or measurement.failure.kind is not FailureKind.WRONG_RESULT:
            return measurement
        if trial.plain:
            return measurement
        # Nothing is done if another GPU's program was doubted meanwhile; it counts what the program was compared with.
        self._references.recompute_plainly(trial.program.operator, self.server)
        if isinstance(self._references.layout(trial.program.operator), Failure):
            return measurement
        return self.run(trial, best)

    def sample(self, trial: Trial, number: int, repeat: int) -> list[float]:
        """More samples of a program that was kept; nothing if it fails now."""
        trial.deadline = time.monotonic() + self._config.run_seconds
        with suppress(ChannelClosedError):
            request = {"library": trial.library, "number": number, "repeat": repeat}
            _gpu_of(trial).process.channel.send({"launch_again": request})
        self._wait(trial)
        answer = self._answer(trial)
        return [] if isinstance(answer, Failure) else [float(seconds) for seconds in answer["samples"]]

    def drain(self, trial: Trial) -> None:
        """Let a GPU finish a program whose result nobody waits for any more."""
        with suppress(ServerLostError):
            self._wait(trial)
            self._answer(trial)

    def overdue(self, trial: Trial) -> bool:
        return time.monotonic() > trial.deadline

    def forget(self, trial: Trial) -> None:
        """The library of a finished trial is not needed any more."""
        if trial.library:
            Path(trial.library).unlink(missing_ok=True)

    def _wait(self, trial: Trial) -> None:
        process = _gpu_of(trial).process
        while process not in self.server.poll([process], 0.05) and not self.overdue(trial):
            pass

    def _answer(self, trial: Trial) -> dict[str, Any] | Failure:
        gpu = _gpu_of(trial)
        process = gpu.process
        if self.overdue(trial) and process not in self.server.poll([process], 0.0):
            failure = Failure(FailureKind.RUN_TIMEOUT, f"took longer than {self._config.run_seconds:g} s")
            gpu.replace()
            return failure
        try:
            answer = process.channel.receive(1.0)
        except (ChannelClosedError, TimeoutError):
            failure = failure_of_end(process.end(), process.last_lines(), False, sys.maxsize)
            gpu.replace()
            return failure
        if "failure" not in answer:
            return answer
        failure = Failure(FailureKind(answer["failure"]), answer["message"], process.last_lines())
        if failure.kind is not FailureKind.WRONG_RESULT:
            gpu.replace()
        return failure


def _gpu_of(trial: Trial) -> HeldGpu:
    assert trial.gpu is not None
    return trial.gpu
