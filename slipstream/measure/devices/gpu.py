"""This machine's GPUs: builders never touch CUDA, and each GPU has one process that runs what they built."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from slipstream.machine.cuda import equal_gpus, find_devices, this_device
from slipstream.measure.config import MeasureConfig
from slipstream.measure.devices.base import DeviceLostError, Devices, Outcome
from slipstream.measure.devices.gpu_process import GpuProcess, HeldGpu
from slipstream.measure.trial import Answer, Trial
from slipstream.measure.types import Failure, FailureKind
from slipstream.processes.channel import ChannelClosedError, Speaker
from slipstream.processes.fork_server import ForkServer

# TVM looks for devices in many places; a builder that had touched CUDA could not be forked.
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}


class GpuDevices(Devices):
    """Equal GPUs. A builder takes nothing from a kernel, so programs are built and run at the same time.

    A kernel that reads a wrong address leaves its process unable to use the device at all, and one that hangs cannot
    be stopped: after any failure of a run the process is replaced.
    """

    def __init__(self, config: MeasureConfig) -> None:
        if not config.gpus:
            this_device()  # an error with a remedy where there is none
        super().__init__()
        self.server_environment = WITHOUT_GPU
        self.build_cpu_seconds = config.build_cpu_seconds
        self._config = config
        self.gpus = [HeldGpu(name) for name in config.gpus or equal_gpus(find_devices())]
        self._running: dict[HeldGpu, Trial] = {}
        self._kept: dict[str, GpuProcess] = {}
        self._usable = self.gpus

    def attach(self, server: ForkServer) -> None:
        super().attach(server)
        for gpu in self._running:
            gpu.replace()
        self._running.clear()

    def is_free(self, trial: Trial) -> bool:
        return any(gpu not in self._running for gpu in self._usable)

    def start(self, trial: Trial, request: dict[str, Any], *, keep: bool) -> None:
        gpu = next(gpu for gpu in self._usable if gpu not in self._running)
        process = gpu.process
        trial.start_running(process.seconds_until_answer(self._config.run_seconds))
        self._running[gpu] = trial
        if keep:
            self._kept[trial.library] = process
        with suppress(ChannelClosedError):  # that it has ended is noticed when its answer is read
            process.channel.send({"launch": {**request, "keep": keep}})

    def speakers(self) -> Sequence[GpuProcess]:
        return [gpu.process for gpu in self._running]

    def collect(self, ready: Collection[Speaker]) -> Iterator[tuple[Trial, Outcome]]:
        for gpu, trial in list(self._running.items()):
            if gpu.process in ready or time.monotonic() > trial.deadline:
                del self._running[gpu]
                yield trial, gpu.answer(self._config.run_seconds)

    @contextmanager
    def only_one(self) -> Iterator[None]:
        self._usable = self.gpus[:1]
        try:
            yield
        finally:
            self._usable = self.gpus

    def sample(self, trial: Trial, number: int) -> float:
        answer = self._ask(trial, {"sample": {"library": trial.library, "number": number, "repeat": 1}})
        if isinstance(answer, Failure):
            raise DeviceLostError(f"the GPU's process failed while it compared programs: {answer.message}")
        return float(answer["samples"][0])

    def release(self, trial: Trial) -> None:
        if trial.library in self._kept:
            self._ask(trial, {"forget": {"library": trial.library}})
            del self._kept[trial.library]
        super().release(trial)

    def abandon(self) -> None:
        """Let every GPU finish what it runs: its answer must not be taken for that of the next program."""
        for gpu, trial in self._running.items():
            gpu.process.channel.is_readable(max(0.0, trial.deadline - time.monotonic()))
            gpu.answer(self._config.run_seconds)
        self._running.clear()

    def close(self) -> None:
        for gpu in self.gpus:
            gpu.close()

    def _ask(self, trial: Trial, request: dict[str, Any]) -> Answer | Failure:
        gpu = next((gpu for gpu in self.gpus if gpu.process is self._kept[trial.library]), None)
        if gpu is None:
            return Failure(FailureKind.DEVICE_LOST, "the process that held the program was replaced")
        with suppress(ChannelClosedError):
            gpu.process.channel.send(request)
        gpu.process.channel.is_readable(self._config.run_seconds)
        return gpu.answer(self._config.run_seconds)
