"""This machine's CPU: a program runs in the worker that built it, one at a time, on cores that nothing else uses."""

from __future__ import annotations

import logging
import math
import os
import signal
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from slipstream.errors import BuildError
from slipstream.machine.affinity import stay_on
from slipstream.machine.mounts import is_noexec
from slipstream.measure.config import MeasureConfig
from slipstream.measure.devices.base import Devices, Outcome
from slipstream.measure.devices.cores import Cores, place
from slipstream.measure.timing.noise import MOST_WAITING, PROBE_SECONDS, Drift
from slipstream.measure.timing.racing import runs_per_sample
from slipstream.measure.trial import Trial, answer_of
from slipstream.measure.types import Failure
from slipstream.processes.channel import ChannelClosedError, Speaker
from slipstream.processes.fork_server import ForkServer, ServerLostError, WorkerProcess
from slipstream.processes.forked import copies_at_work
from slipstream.runtime.link import pool_library

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.05
# Builders go on beside a run unless so many programs take longer with them, in the median, by more than this share.
_COMPARED, _COMPARED_SAMPLES = 5, 5
_MOST_DISTURBANCE = 0.05
_MOST_PROBES = 3  # in a row, while the machine seems busy
RUN_OPTIONS = ("layout", "best", "tolerance", "racing", "model_weights")


class CpuDevice(Devices):
    """The CPU, and the reference kernel that tells whether it is busy.

    While programs run, as many builders and searches go on as there are cores beside those that time, and the others
    are paused. The first programs are sampled with these builders and without: if they take longer with them, by more
    than matters, all are paused from then on.
    """

    exclusive = True

    def __init__(self, config: MeasureConfig, cores: Cores) -> None:
        super().__init__()
        self.server_environment = with_models_pool()
        self.cores = cores
        self._drift = self.drifts["cpu"] = Drift()
        self._config = config
        self._running: Trial | None = None
        self._probe: WorkerProcess | None = None
        self._probed_at = -math.inf
        self._turn: Sequence[Trial] | None = None  # what is being built while programs run
        self._disturbances: list[float] = []

    @property
    def is_alone(self) -> bool:
        return not self.cores.beside

    def attach(self, server: ForkServer) -> None:
        super().attach(server)
        self._running = self._probe = None

    def builders(self, configured: int) -> int:
        return configured if self._turn is None else min(configured, len(self.cores.beside))

    def build_request(self, trial: Trial) -> dict[str, Any]:
        return {"generate": {}}

    def allocate_request(self, layout: list[dict[str, Any]]) -> dict[str, Any]:
        return {"allocate": {"layout": layout, "model_weights": self._config.model_weights}}

    def is_free(self, trial: Trial) -> bool:
        return self._running is None

    def start(self, trial: Trial, request: dict[str, Any], *, keep: bool) -> None:
        self._running = trial
        trial.start_running(self._config.run_seconds)
        options = {name: request[name] for name in RUN_OPTIONS}
        trial.send({"run": {**options, "is_allocated": trial.is_allocated, "cores": sorted(self.cores.timing)}})
        trial.is_allocated = False

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
            self._compare_with_quiet(trial, statistics.median(answer["samples"]))
        yield trial, answer

    @contextmanager
    def quiet(self, building: Sequence[Trial]) -> Iterator[None]:
        """Of what is being built, the first go on, which are the furthest; more may be begun in place of them."""
        cores, searches = self.cores, copies_at_work()
        paused = list(building[len(cores.beside) :])
        self._turn = building
        try:
            self._pause(paused)
            if cores.beside:
                self._confine(cores.beside)
            else:
                _signal(searches, signal.SIGSTOP)
            self._time_probe()
            yield
        finally:
            self._resume(paused)
            if cores.beside:
                with suppress(ServerLostError):
                    self._confine(cores.all)
            else:
                _signal(searches & copies_at_work(), signal.SIGCONT)
            self._turn = None
        found = statistics.median(self._disturbances) if len(self._disturbances) >= _COMPARED else 0.0
        if cores.beside and found > _MOST_DISTURBANCE:
            logger.info("programs take %.0f %% longer while others are built: they are timed alone", 100 * found)
            self.cores = Cores(cores.all)

    def make_way(self, trial: Trial) -> None:
        if self._turn is not None and trial.worker is not None and trial.worker.pid and self.cores.beside:
            place(trial.worker.pid, self.cores.beside)

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
            timings: list[list[float]] = []
            # A moment's disturbance is over when the kernel is timed again; what is busy stays so.
            while not timings or (len(timings) < _MOST_PROBES and self._drift.would_be_busy(timings[-1])):
                self._probe.channel.send({"probe": {"cores": sorted(self.cores.timing)}})
                timings.append(self._probe.channel.receive(self._config.run_seconds)["samples"])
        except (ChannelClosedError, TimeoutError, KeyError):
            if self._probe is not None:
                self._server.discard(self._probe)
            self._probe = None
            return
        self._probed_at = time.monotonic()
        slower = self._drift.add(min(timings, key=statistics.median))
        if self._drift.is_busy:
            logger.info("the reference kernel runs %.0f %% slower than usual: the machine is busy", 100 * slower)

    def _pause(self, trials: Sequence[Trial]) -> None:
        if trials:
            self._server.pause([trial.worker for trial in trials if trial.worker is not None])
        for trial in trials:
            trial.paused_at = time.monotonic()

    def _resume(self, trials: Sequence[Trial]) -> None:
        if trials:
            with suppress(ServerLostError):  # then there is nothing to resume
                self._server.resume([trial.worker for trial in trials if trial.worker is not None])
        for trial in trials:
            if trial.paused_at is not None:
                trial.was_paused(time.monotonic() - trial.paused_at)
                trial.paused_at = None

    def _confine(self, cores: Collection[int]) -> None:
        """Keep this process, the server with what it forks, and whatever builds or searches now on these cores."""
        stay_on(cores)
        self._server.pause([])  # when this is answered, all workers asked for before have been forked
        workers = [trial.worker for trial in self._turn or () if trial.worker is not None]
        for process in (self._server.pid, *(worker.pid for worker in workers if worker.pid), *copies_at_work()):
            place(process, cores)

    def _compare_with_quiet(self, trial: Trial, seconds: float) -> None:
        """Sample one of the first programs with builders beside it and without, in turn; if they disturb, end that."""
        beside = [one for one in self._turn or () if one.paused_at is None]
        if self.is_alone or not beside or len(self._disturbances) >= _COMPARED:
            return
        elapsed = time.monotonic() - trial.run_began
        number = runs_per_sample(seconds, self._config.racing)
        with_builders, without = list[float](), list[float]()
        for _ in range(_COMPARED_SAMPLES):
            with_builders.append(self.sample(trial, number))
            self._pause(beside)
            try:
                without.append(self.sample(trial, number))
            finally:
                self._resume(beside)
        self._disturbances.append(statistics.median(with_builders) / statistics.median(without) - 1)
        trial.run_began = time.monotonic() - elapsed


def _signal(processes: Collection[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def with_models_pool() -> dict[str, str]:
    """Environment in which programs are timed with the thread pool that compiled models have, in place of TVM's."""
    preloaded, pool = os.environ.get("LD_PRELOAD"), pool_library()
    if is_noexec(pool):  # the dynamic linker would go on without it, and programs be timed as they will not run
        raise BuildError(
            f"{pool.parent} is on a file system that is mounted noexec, from which no code can be loaded: "
            "set XDG_CACHE_HOME to a folder on another one"
        )
    return {"LD_PRELOAD": f"{pool}:{preloaded}" if preloaded else str(pool)}
