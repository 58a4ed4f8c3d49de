"""What the engine asks of the devices of one kind: this machine's CPU, its GPUs, or remote ones.

A built program is handed to a device with `start` and answered by `collect`; which of several devices runs it is up to
them. An answer has `samples`, `stopped_early`, `allocate_seconds`, `run_seconds` and `noisy`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from slipstream.errors import SlipstreamError
from slipstream.measure.timing.noise import Drift
from slipstream.measure.trial import Answer, Trial
from slipstream.measure.types import Failure
from slipstream.processes.channel import Speaker
from slipstream.processes.fork_server import ForkServer

Outcome = Answer | Failure | None
"""The answer to a run; why it failed; None if the device failed and the program is to be started again."""


class DeviceLostError(SlipstreamError):
    """The device that holds the finalists of a comparison has failed."""


class Devices(Protocol):
    """`exclusive`: nothing may be built while a program runs. `most_waiting` built programs may wait for a device.

    `server_options` are for `roles.prepare`, `server_environment` for the process it runs in. `drifts` say for each
    device how long the reference kernel has taken.
    """

    exclusive: bool
    most_waiting: float

    @property
    def server_options(self) -> dict[str, Any]: ...

    @property
    def server_environment(self) -> Mapping[str, str]: ...

    @property
    def drifts(self) -> Mapping[str, Drift]: ...

    def attach(self, server: ForkServer) -> None:
        """Use this fork server from now on; runs that were under way are forgotten."""

    def build_request(self, trial: Trial) -> dict[str, Any]:
        """What a worker that has lowered the program is to do: code in its memory, or a library."""

    def acquire(self, waiting: int) -> str:
        """Obtain devices for `waiting` programs, without blocking; why there are none if that is final for now."""

    def is_free(self, trial: Trial) -> bool:
        """Whether `start` finds an idle device for this program."""

    def start(self, trial: Trial, request: dict[str, Any], *, keep: bool) -> None:
        """Run a built program on an idle device. One to `keep` can be sampled afterwards."""

    def speakers(self) -> Sequence[Speaker]:
        """The processes that may answer now."""

    def collect(self, ready: Collection[Speaker]) -> Iterator[tuple[Trial, Outcome]]:
        """The runs that have ended, given the speakers that have sent something."""

    def quiet(self, building: Sequence[Trial]) -> AbstractContextManager[None]:
        """Pause the workers of `building`, so that programs run alone."""

    def only_one(self) -> AbstractContextManager[None]:
        """Start programs on one device alone, for a comparison between them."""

    def sample(self, trial: Trial, number: int) -> float:
        """Seconds of a run of a program that was kept, as the mean of `number`; infinite if it fails now."""

    def release(self, trial: Trial) -> None:
        """Free what is held for a trial that has ended."""

    def abandon(self) -> None:
        """Forget the runs under way."""

    def close(self) -> None: ...
