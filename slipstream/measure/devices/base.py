"""What the engine asks of the devices of one kind: this machine's CPU, its GPUs, or remote ones.

A built program is handed to a device with `start` and answered by `collect`; which of several devices runs it is up to
them. An answer has `samples`, `stopped_early`, `allocate_seconds`, `run_seconds` and `noisy`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from slipstream.errors import SlipstreamError
from slipstream.measure.timing.noise import Drift
from slipstream.measure.trial import Answer, Trial
from slipstream.measure.types import Failure
from slipstream.processes.channel import Speaker
from slipstream.processes.fork_server import ForkServer

Outcome = Answer | Failure | None
"""The answer to a run; why it failed; None if the device failed and the program is to be started again."""


D = TypeVar("D")


class DeviceLostError(SlipstreamError):
    """The device that holds the finalists of a comparison has failed."""


@dataclass
class Comparison(Generic[D]):
    """Finalists that stay on one of several devices: the one `chosen` for the first. `kept` are their libraries."""

    is_on: bool = False
    chosen: D | None = None
    kept: set[str] = field(default_factory=set)

    @contextmanager
    def on_one_device(self) -> Iterator[None]:
        self.is_on = True
        try:
            yield
        finally:
            self.is_on, self.chosen = False, None

    def started(self, device: D, library: str, *, keep: bool) -> None:
        """A program was started on a device."""
        if self.is_on:
            self.chosen = device
        if keep:
            self.kept.add(library)

    def lost(self, device: D, why: str) -> None:
        """The device failed: so has a comparison of programs that were on it."""
        if device is self.chosen and len(self.kept) > 1:
            raise DeviceLostError(f"{why} while it compared programs")

    def clear(self) -> None:
        self.chosen = None
        self.kept.clear()


class Devices(ABC):
    """`exclusive`: programs are built and run in turns, and a program runs in the worker that built it. `most_waiting`
    built programs may wait for a device. `limits_builds`: what builds for them ends what takes too long itself.

    `build_cpu_seconds` limits the processor time of generating a library. `server_options` are for `roles.prepare`,
    `server_environment` for the process it runs in. `drifts` say how long the reference kernel took on each device.
    """

    exclusive = limits_builds = False
    most_waiting = math.inf
    build_cpu_seconds: float | None = None

    def __init__(self) -> None:
        self.server_options: dict[str, Any] = {}
        self.server_environment: Mapping[str, str] = {}
        self.drifts: dict[str, Drift] = {}

    @property
    def is_alone(self) -> bool:
        """Whether nothing may be built while a program runs."""
        return False

    def builders(self, configured: int) -> int:
        """How many programs can be built at a time now; as many as `configured` where this machine builds."""
        return configured

    def start_server(self, prepare: str, options: dict[str, Any], memory_bytes: int) -> ForkServer:
        """A new server of the processes that build."""
        return ForkServer.start(prepare, {**options, **self.server_options}, memory_bytes, self.server_environment)

    def attach(self, server: ForkServer) -> None:
        """Use this fork server from now on; runs that were under way are forgotten."""
        self._server = server

    def build_request(self, trial: Trial) -> dict[str, Any]:
        """What a worker that has lowered the program is to do: a library, or code in its own memory."""
        trial.library = str(self._server.scratch / f"{trial.worker.name if trial.worker else 0}.so")
        return {"generate_library": {"path": trial.library, "cpu_seconds": self.build_cpu_seconds}}

    def allocate_request(self, layout: list[dict[str, Any]]) -> dict[str, Any] | None:
        """What a worker is to do to have its arguments in place before it runs, where it runs what it built."""
        return None

    def acquire(self, waiting: int) -> str:
        """Obtain devices for `waiting` programs, without blocking; why there are none if that is final for now."""
        return ""

    @abstractmethod
    def is_free(self, trial: Trial) -> bool:
        """Whether `start` finds an idle device for this program."""

    @abstractmethod
    def start(self, trial: Trial, request: dict[str, Any], *, keep: bool) -> None:
        """Run a built program on an idle device. One to `keep` can be sampled afterwards."""

    @abstractmethod
    def speakers(self) -> Sequence[Speaker]:
        """The processes that may answer now."""

    @abstractmethod
    def collect(self, ready: Collection[Speaker]) -> Iterator[tuple[Trial, Outcome]]:
        """The runs that have ended, given the speakers that have sent something."""

    def quiet(self, building: Sequence[Trial]) -> AbstractContextManager[None]:
        """Pause workers of `building`, all that would disturb a run; more may be added meanwhile."""
        return nullcontext()

    def make_way(self, trial: Trial) -> None:  # noqa: B027  # only where a worker's end could disturb a run
        """The worker of this trial is about to be ended."""

    def only_one(self) -> AbstractContextManager[None]:
        """Start programs on one device alone, for a comparison between them."""
        return nullcontext()

    @abstractmethod
    def sample(self, trial: Trial, number: int) -> float:
        """Seconds of a run of a program that was kept, as the mean of `number`; infinite if it fails now."""

    def release(self, trial: Trial) -> None:
        """Free what is held for a trial that has ended."""
        if trial.library:
            Path(trial.library).unlink(missing_ok=True)

    @abstractmethod
    def abandon(self) -> None:
        """Forget the runs under way."""

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """End the devices' own processes."""
