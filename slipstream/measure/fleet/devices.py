"""The devices of a fleet: which are there, what runs on them, and which are set aside."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from slipstream.machine.hardware import class_of
from slipstream.machine.target import Target
from slipstream.measure.config import MeasureConfig
from slipstream.measure.devices.base import Comparison, DeviceLostError, Devices, Outcome
from slipstream.measure.fleet.connection import FleetServer, Mailbox
from slipstream.measure.fleet.standing import Standings
from slipstream.measure.timing.noise import MOST_WAITING
from slipstream.measure.trial import Answer, Trial, failure_in
from slipstream.measure.types import Failure, FailureKind
from slipstream.processes.channel import ChannelClosedError, Speaker
from slipstream.processes.fork_server import ForkServer, ServerLostError

logger = logging.getLogger(__name__)

# Beyond a run's own limit, which its node keeps and an RPC device may use up twice, and what the gateway waits: then
# the gateway has failed too.
_ON_THE_WAY = 90.0
_PROBE_SECONDS = 5.0
# Failures of nodes say little about a program, which ran in a process of its own; but it may be what ends them.
_MOST_ATTEMPTS = 8


@dataclass(eq=False)
class _Device:
    """A device and the program it runs. `asked` is the number of the request that it has to answer."""

    name: str
    channel: Mailbox
    trial: Trial | None = None
    asked: int = 0
    probed_at: float = -math.inf


@dataclass(frozen=True)
class Mishap:
    """A device failed while it had the program, or its result was wrong, compared with the `plain` reference or not."""

    device: str
    why: str
    is_wrong: bool = False
    plain: bool = False

    def __str__(self) -> str:
        return f"{self.why} on {self.device}"


class FleetDevices(Devices):
    """The devices of the target's hardware class in the Ray cluster at `address`, and the builders of all its nodes."""

    limits_builds = True

    def __init__(self, address: str, target: Target, config: MeasureConfig) -> None:
        super().__init__()
        self._config = config
        self._standings = Standings(self.drifts)
        remote, limits = config.remote, {"build_seconds": config.build_seconds, "run_seconds": config.run_seconds}
        if target.gpu is not None:
            self.build_cpu_seconds = config.build_cpu_seconds
        self.options = {
            "address": address,
            "hardware": class_of(target),
            "target": asdict(target),
            "limits": limits,
            "patience_seconds": remote.patience_seconds,
            "queue_seconds": remote.queue_seconds,
        }
        self._devices: dict[str, _Device] = {}
        self._idle: dict[str, _Device] = {}
        # The names of devices to use, and what they were chosen from.
        self._usable: frozenset[str] = frozenset()
        self._chosen_from: tuple[Any, int] = (None, 0)
        self._numbers = count(1)
        self._seen_at = time.monotonic()
        self._said = ""
        self._comparison = Comparison[_Device]()

    # Builders

    def start_server(self, prepare: str, options: dict[str, Any], memory_bytes: int) -> ForkServer:
        return FleetServer(prepare, options, memory_bytes, self.options)

    def attach(self, server: ForkServer) -> None:
        super().attach(server)
        assert isinstance(server, FleetServer)
        self._gateway = server.gateway
        self._devices.clear()
        self._idle.clear()
        self._comparison.clear()
        self._chosen_from = (None, 0)
        self._seen_at = time.monotonic()

    def builders(self, configured: int) -> int:
        return max(1, self._gateway.state.builders)

    # Devices

    def acquire(self, waiting: int) -> str:
        state, now = self._gateway.state, time.monotonic()
        if self._chosen_from != (state, self._standings.changes):
            self._chosen_from = state, self._standings.changes
            self._take_in(state.devices)
        self._time_again(now)
        if state.devices and state.builders:
            self._seen_at = now
        waited, why = now - self._seen_at, ""
        if waited > self._config.remote.queue_seconds:
            why = state.unavailable or "no node of the fleet was free"
        elif waited > self._config.remote.patience_seconds:
            why = state.unavailable
        if why and why != self._said:
            logger.warning("nothing can be measured, for %.0f s now: %s", waited, why)
        self._said = why
        return why

    def _take_in(self, names: Sequence[str]) -> None:
        """Which devices there are, and which of them are set aside."""
        for name in names:
            if name not in self._devices:
                self._devices[name] = self._idle[name] = _Device(name, self._gateway.open(name))
        for name in [name for name, device in self._idle.items() if name not in names and device.trial is None]:
            del self._devices[name], self._idle[name]
        self._usable = frozenset(names) - self._standings.aside(names)

    def is_free(self, trial: Trial) -> bool:
        return self._choose(trial) is not None

    def start(self, trial: Trial, request: dict[str, Any], *, keep: bool) -> None:
        device = self._choose(trial)
        assert device is not None
        self._comparison.started(device, trial.library, keep=keep)
        device.trial = trial
        del self._idle[device.name]
        trial.start_running(2 * self._config.run_seconds + _ON_THE_WAY)
        self._ask(device, "run", launch={**request, "keep": keep})

    def speakers(self) -> Sequence[Speaker]:
        return list(self._devices.values())

    def collect(self, ready: Collection[Speaker]) -> Iterator[tuple[Trial, Outcome]]:
        for device in [device for device in ready if isinstance(device, _Device)]:
            while device.channel.mail:
                message = device.channel.mail.popleft()
                answer = message["answer"]
                if answer.get("probe"):
                    self._standings.timed(device.name, answer["probe"])
                if message["id"] == device.asked and (trial := self._take_trial(device)) is not None:
                    yield trial, self._outcome(device, trial, answer, message["stderr"])
        now = time.monotonic()
        for device in [d for d in self._devices.values() if d.trial is not None and now > d.trial.deadline]:
            if (late := self._take_trial(device)) is not None:
                yield late, self._outcome(device, late, {"lost": "no answer"}, "")

    def _outcome(self, device: _Device, trial: Trial, answer: Answer, stderr: str) -> Outcome:
        if "lost" in answer:
            self._comparison.lost(device, f"{device.name} failed ({answer['lost']})")
            trial.mishaps.append(Mishap(device.name, answer["lost"]))
            if len(trial.mishaps) < _MOST_ATTEMPTS:
                return None
            story = "; ".join(map(str, trial.mishaps))
            return Failure(FailureKind.DEVICE_LOST, f"given up after {len(trial.mishaps)} attempts: {story}")
        opinions = [m for m in trial.mishaps if m.is_wrong and m.plain == trial.plain]
        if "failure" in answer:
            failure = failure_in(answer, stderr)
            others = self._usable - {device.name}
            if failure.kind is FailureKind.WRONG_RESULT and not opinions and others and not self._comparison.is_on:
                trial.mishaps.append(Mishap(device.name, failure.message, True, trial.plain))
                return None  # another device is asked
            return failure
        for opinion in opinions:
            if opinion.device != device.name:
                self._standings.was_wrong(opinion.device)
        waited = answer.get("waited_seconds", 0.0) > MOST_WAITING * answer["run_seconds"]
        return {**answer, "noisy": waited or self._standings.is_busy(device.name)}

    def only_one(self) -> AbstractContextManager[None]:
        return self._comparison.on_one_device()

    def sample(self, trial: Trial, number: int) -> float:
        device = self._comparison.chosen
        if device is None:
            raise DeviceLostError("no device of the fleet holds the programs to compare")
        asked = self._ask(device, "sample", library=trial.library, number=number)
        deadline = time.monotonic() + self._config.run_seconds + _ON_THE_WAY
        while device.channel.is_readable(max(0.0, deadline - time.monotonic())):
            message = device.channel.mail.popleft()
            if message["id"] != asked:
                continue
            if "samples" in message["answer"]:
                return float(message["answer"]["samples"][0])
            break
        raise DeviceLostError(f"{device.name} failed while it compared programs")

    def release(self, trial: Trial) -> None:
        with suppress(ServerLostError):
            if trial.library in self._comparison.kept:
                self._comparison.kept.discard(trial.library)
                for device in self._devices.values():
                    self._send("forget", device=device.name, library=trial.library)
            if trial.library:  # the gateway has it, there is no file
                self._send("drop", library=trial.library)

    def abandon(self) -> None:
        """Forget what runs: the answers are not taken for those of other programs, since requests are numbered."""
        for device in self._devices.values():
            self._take_trial(device)

    def _take_trial(self, device: _Device) -> Trial | None:
        trial, device.trial, device.asked = device.trial, None, 0
        self._idle[device.name] = device
        return trial

    def _choose(self, trial: Trial) -> _Device | None:
        """An idle device; for another attempt, one that has not failed with this program if there is any."""
        chosen = self._comparison.chosen
        if chosen is not None and chosen.name in self._gateway.state.devices:
            return chosen if chosen.trial is None else None
        good = self._usable - {mishap.device for mishap in trial.mishaps} if trial.mishaps else self._usable
        good = good or self._usable
        return next((device for name, device in self._idle.items() if name in good), None)

    def _time_again(self, now: float) -> None:
        """Time the reference kernel on devices that are set aside: they may have recovered."""
        for name, device in self._idle.items():
            if name not in self._usable and now - device.probed_at > _PROBE_SECONDS:
                device.probed_at = now
                self._send("probe", device=name)

    def _ask(self, device: _Device, kind: str, **options: Any) -> int:
        device.asked = next(self._numbers)
        self._send(kind, device=device.name, id=device.asked, **options)
        return device.asked

    def _send(self, kind: str, **options: Any) -> None:
        try:
            self._gateway.send({"kind": kind, "id": 0, **options})
        except ChannelClosedError as error:
            raise ServerLostError(f"the gateway to Ray has ended: {error}") from error
