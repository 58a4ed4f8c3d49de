"""The devices of a measurer: which are connected, what runs on them, and what happens when one fails."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import partial

from slipstream.measure.devices.rpc_builders import NEVER, Watched
from slipstream.measure.devices.rpc_messages import (
    Acquire,
    Acquiring,
    Connected,
    Connecting,
    DeviceMessage,
    DeviceOptions,
    Lost,
    Preparing,
    Ran,
    Released,
    Returned,
    RunFailed,
    RunJob,
    Running,
    Wrong,
)
from slipstream.measure.devices.rpc_nursery import Nursery, Worker
from slipstream.measure.devices.rpc_tracker import DeviceError, Tracker
from slipstream.measure.devices.rpc_trials import Attempt, Mishap, Round, Trial, conclude
from slipstream.measure.types import Failure, FailureKind

_CHECK_EVERY_S = 0.5


@dataclass(eq=False)
class _Device:
    worker: Worker
    address: str = ""
    connected: bool = False
    released: bool = False
    trial: Trial | None = None
    running_since: float | None = None
    deadline: float = NEVER


class DevicePool:
    """Up to `size` devices at once. `threads` is what the target has, to compare with what servers say."""

    def __init__(self, nursery: Nursery, options: DeviceOptions, size: int, threads: int) -> None:
        self._nursery = nursery
        self._options = options
        self._settings = options.settings
        self._threads = threads
        self._devices: list[_Device] = []
        self._warned: set[str] = set()
        self._seen_at = self._checked_at = time.monotonic()
        self.size = size

    @property
    def busy(self) -> int:
        """How many programs are on a device."""
        return sum(device.trial is not None for device in self._devices)

    def assign(self, work: Round) -> None:
        """Give waiting programs to free devices, a second attempt to another device if there is one."""
        while len(self._devices) < self.size:
            self._devices.append(_Device(self._nursery.start("device", self._options)))
        for device in self._devices:
            if device.released and device.trial is None and work.waiting:
                device.released = False
                device.worker.send(Acquire())
        connected = {device.address for device in self._devices if device.connected}
        for device in self._devices:
            if not device.connected or device.trial is not None:
                continue
            for trial in work.waiting:
                if device.address not in trial.tried_on or not connected - trial.tried_on:
                    work.waiting.remove(trial)
                    self._run(device, trial, work.seconds_of_best(trial.program.operator))
                    break

    def watched(self) -> list[Watched]:
        return [
            Watched(d.worker.connection, d.deadline, partial(self._hear, d), partial(self._expire, d))
            for d in self._devices
        ]

    def give_up_if_none(self, work: Round) -> None:
        """Fail the programs that wait for devices which do not come."""
        now = time.monotonic()
        if any(device.connected for device in self._devices):
            self._seen_at, work.given_up = now, ""
        if not work.waiting:
            self._seen_at = now
        waited = now - self._seen_at
        if waited < self._settings.patience or now - self._checked_at < _CHECK_EVERY_S:
            return
        self._checked_at = now
        work.given_up = self._why_give_up(waited)
        while work.given_up and work.waiting:
            trial = work.waiting.popleft()
            story = "; ".join([work.given_up, *map(str, trial.attempts)])
            work.finish(trial, trial.measurement(failure=Failure(FailureKind.DEVICE_LOST, story)))

    def abandon(self) -> None:
        """Forget what is on devices; they go back to the tracker when they are done with it."""
        for device in [d for d in self._devices if d.trial is not None]:
            self._devices.remove(device)
            self._nursery.dismiss(device.worker)

    def _run(self, device: _Device, trial: Trial, best: float) -> None:
        device.trial = trial
        device.deadline = time.monotonic() + self._settings.device_timeout
        device.worker.send(
            RunJob(
                trial.program.operator,
                str(trial.library),
                trial.values,
                trial.arguments,
                trial.written,
                trial.packed,
                best,
            )
        )

    def _hear(self, device: _Device, work: Round) -> None:
        try:
            message: DeviceMessage = device.worker.connection.recv()
        except (EOFError, OSError):
            message = Lost(device.worker.last_lines() or "its worker ended")
        now = time.monotonic()
        match message:
            case Acquiring():
                device.connected, device.deadline = False, NEVER
            case Connecting(address):
                device.address, device.deadline = address, now + self._settings.device_timeout
            case Connected(address, threads):
                device.connected, device.deadline = True, NEVER
                self._compare_threads(address, threads)
            case Released():
                device.connected, device.released = False, True
            case Returned():
                device.connected = device.released = False
                work.waiting.appendleft(_release(device, 0.0))
            case Preparing():
                device.deadline = now + self._settings.device_timeout
            case Running():
                device.running_since, device.deadline = now, now + self._settings.run_timeout
            case Ran():
                trial = _release(device, message.seconds)
                measurement = trial.measurement(
                    message.samples,
                    stopped_early=message.stopped_early,
                    verified=message.verified,
                    allocate_seconds=message.allocate_seconds,
                    overhead_seconds=message.upload_seconds,
                )
                work.finish(trial, measurement)
            case Wrong(text) | RunFailed(text):
                trial = _release(device, 0.0 if device.running_since is None else now - device.running_since)
                kind = FailureKind.WRONG_RESULT if isinstance(message, Wrong) else FailureKind.RUN_ERROR
                work.finish(trial, trial.measurement(failure=Failure(kind, text, device.worker.last_lines())))
            case Lost(text):
                self._lose(device, work, Mishap.BROKE, text)

    def _expire(self, device: _Device, work: Round) -> None:
        self._lose(device, work, Mishap.STALLED if device.running_since is None else Mishap.TOO_LONG)

    def _lose(self, device: _Device, work: Round, mishap: Mishap, message: str = "") -> None:
        """End a device's worker, and have the program it had tried elsewhere if it deserves that."""
        self._remove(device)
        if device.trial is None:
            return
        ran = 0.0 if device.running_since is None else time.monotonic() - device.running_since
        trial = _release(device, ran)
        trial.attempts.append(Attempt(mishap, device.address, message))
        failure = conclude(trial.attempts, self._settings.attempts)
        if failure is None:
            work.waiting.appendleft(trial)
        else:
            work.finish(trial, trial.measurement(failure=failure))

    def _remove(self, device: _Device) -> None:
        self._devices.remove(device)
        self._nursery.kill(device.worker)

    def _why_give_up(self, waited: float) -> str:
        """Empty while there is hope: others may be using the servers."""
        options = self._options
        where = f"key {options.key!r} at the tracker {options.host}:{options.port}"
        try:
            with Tracker(options.host, options.port) as tracker:
                servers = tracker.servers(options.key)
        except DeviceError as error:
            return str(error)
        if not servers:
            return f"no server with {where} for {waited:.0f} s"
        if waited >= self._settings.queue_timeout:
            return f"queued {waited:.0f} s in vain for {', '.join(servers)} with {where}"
        return ""

    def _compare_threads(self, address: str, threads: int) -> None:
        if threads != self._threads and address not in self._warned:
            self._warned.add(address)
            warnings.warn(
                f"the server {address} runs code on {threads} threads, the target has {self._threads}: "
                f"start it with --threads (ours) or TVM_NUM_THREADS (TVM's)",
                stacklevel=2,
            )


def _release(device: _Device, run_seconds: float) -> Trial:
    trial, device.trial, device.running_since, device.deadline = device.trial, None, None, NEVER
    assert trial is not None
    trial.run_seconds += run_seconds
    return trial
