"""This machine's CPU: a program runs in the worker that built it, one at a time, while all builders are paused."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from slipstream.measure.config import MeasureConfig
from slipstream.measure.devices.base import Devices, Outcome
from slipstream.measure.timing.noise import MOST_WAITING, PROBE_SECONDS, Drift
from slipstream.measure.trial import Trial, answer_of
from slipstream.measure.types import Failure
from slipstream.processes.channel import ChannelClosedError, Speaker
from slipstream.processes.fork_server import ForkServer, ServerLostError, WorkerProcess
from slipstream.runtime.link import pool_library

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.05
_RUN_OPTIONS = ("layout", "best", "tolerance", "racing")


class CpuDevice(Devices):
    """The CPU, and the reference kernel that tells whether it is busy."""

    exclusive = True

    def __init__(self, config: MeasureConfig) -> None:
        super().__init__()
        self.server_environment = with_models_pool()
        self._drift = self.drifts["cpu"] = Drift()
        self._config = config
        self._running: Trial | None = None
        self._probe: WorkerProcess | None = None
        self._probed_at = -math.inf

    def attach(self, server: ForkServer) -> None:
        super().attach(server)
        self._running = self._probe = None

    def build_request(self, trial: Trial) -> dict[str, Any]:
        return {"generate": {}}

    def is_free(self, trial: Trial) -> bool:
        return self._running is None

    def start(self, trial: Trial, request: dict[str, Any], *, keep: bool) -> None:
        self._running = trial
        trial.start_running(self._config.run_seconds)
        trial.send({"run": {name: request[name] for name in _RUN_OPTIONS}})

    def speakers(self) -> Sequence[Speaker]:
        return [] if self._running is None or self._running.worker is None else [self._running.worker]

    def collect(self, ready: Collection[Speaker]) -> Iterator[tuple[Trial, Outcome]]:
        trial = self._running
        if trial is None:
            return
        answer = answer_of(trial, self._server, trial.worker in ready, self._config)
        if answer is None:
            return
        self._running = None
        if not isinstance(answer, Failure):
            waited = answer["waited_seconds"] > MOST_WAITING * answer["run_seconds"]
            answer["noisy"] = waited or self._drift.is_busy
        yield trial, answer

    @contextmanager
    def quiet(self, building: Sequence[Trial]) -> Iterator[None]:
        workers = [trial.worker for trial in building if trial.worker is not None]
        self._server.pause(workers)
        began = time.monotonic()
        try:
            self._time_probe()
            yield
        finally:
            with suppress(ServerLostError):  # then there is nothing to resume
                self._server.resume(workers)
            for trial in building:
                trial.was_paused(time.monotonic() - began)

    def sample(self, trial: Trial, number: int) -> float:
        trial.start_running(self._config.run_seconds)
        trial.send({"sample": {"number": number, "repeat": 1}})
        workers = [trial.worker] if trial.worker is not None else []
        answer: Outcome = None
        while answer is None:
            ready = self._server.poll(workers, _TICK_SECONDS)
            answer = answer_of(trial, self._server, trial.worker in ready, self._config)
        return math.inf if isinstance(answer, Failure) else float(answer["samples"][0])

    def abandon(self) -> None:
        self._running = None

    def _time_probe(self) -> None:
        """Time the reference kernel if that was not done lately."""
        if time.monotonic() - self._probed_at < PROBE_SECONDS:
            return
        try:
            if self._probe is None:
                self._probe = self._server.fork("build")
            self._probe.channel.send({"probe": {}})
            samples = self._probe.channel.receive(self._config.run_seconds)["samples"]
        except (ChannelClosedError, TimeoutError, KeyError):
            if self._probe is not None:
                self._server.discard(self._probe)
            self._probe = None
            return
        self._probed_at = time.monotonic()
        slower = self._drift.add(samples)
        if self._drift.is_busy:
            logger.info("the reference kernel runs %.0f %% slower than usual: the machine is busy", 100 * slower)


def with_models_pool() -> dict[str, str]:
    """Environment in which programs are timed with the thread pool that compiled models have, in place of TVM's."""
    preloaded = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": f"{pool_library()}:{preloaded}" if preloaded else str(pool_library())}
