"""Measuring on remote devices, through TVM's RPC tracker and servers.

Programs are built here, in worker processes, and run there, on several devices at once; a worker per device
talks to its server. Everything overlaps, and no more is taken from the caller than keeps both busy. This
process only passes messages and watches the clock: it never imports TVM.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.connection import wait
from types import TracebackType

from slipstream.errors import TargetError
from slipstream.machine.target import Target, available_cores
from slipstream.measure.devices.rpc_builders import NEVER, BuilderPool
from slipstream.measure.devices.rpc_devices import DevicePool
from slipstream.measure.devices.rpc_messages import DeviceOptions, RpcSettings
from slipstream.measure.devices.rpc_nursery import Nursery
from slipstream.measure.devices.rpc_tracker import DeviceError, Tracker
from slipstream.measure.devices.rpc_trials import Round
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement

__all__ = ["DeviceError", "RpcMeasurer", "RpcSettings"]

_TICK_S = 0.5


class RpcMeasurer:
    """A `Measurer` for the devices registered under `key` with the tracker at `host`:`port`.

    Up to `devices` of them are used at once, and `builders` processes build. `target` is what the devices are;
    libraries are linked here, so they must have this machine's architecture. Programs of the operators in
    `references` (key -> the unscheduled function, see `reference_text`) are checked before they are timed.
    TVM's RPC runs any code it is sent and encrypts nothing: use it on loopback or a network you trust
    (docs/remote-devices.md). Raises `DeviceError` if there is no tracker; servers may come and go.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: str,
        target: Target,
        *,
        devices: int = 2,
        builders: int | None = None,
        settings: RpcSettings | None = None,
        references: Mapping[str, str] | None = None,
    ) -> None:
        if target.architecture != platform.machine():
            raise TargetError(f"cannot link for {target.architecture} on this {platform.machine()} machine")
        Tracker(host, port).close()
        settings = settings or RpcSettings()
        options = DeviceOptions(host, port, key, settings)
        self._nursery = Nursery()
        self._devices = DevicePool(self._nursery, options, devices, target.threads)
        self._builders = BuilderPool(self._nursery, target, builders or available_cores(), settings, references or {})
        self.best: dict[str, Measurement] = {}
        self._measuring = False

    def measure(self, programs: Iterable[Candidate]) -> Iterator[Measurement]:
        """One measurement for each program, as they become known. One call at a time."""
        return self._measure(programs, self.best)

    def _measure(self, programs: Iterable[Candidate], best: dict[str, Measurement]) -> Iterator[Measurement]:
        if self._measuring:
            raise RuntimeError("this measurer is measuring already: finish or close that iterator first")
        self._measuring = True
        work = Round(iter(programs), best)
        try:
            while True:
                while work.done:
                    yield work.done.popleft()
                self._take(work)
                self._devices.assign(work)
                if work.done:
                    continue
                if work.exhausted and not work.waiting and not self._builders.busy and not self._devices.busy:
                    return
                self._listen(work)
                self._devices.give_up_if_none(work)
        finally:
            self._builders.abandon()
            self._devices.abandon()
            self._measuring = False

    def close(self) -> None:
        """End every worker; devices go back to the tracker."""
        self._nursery.close()

    def __enter__(self) -> RpcMeasurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, work: Round) -> None:
        """Take programs while a builder is free and not too many wait for a device already."""
        enough = self._builders.size + 2 * self._devices.size
        while not work.exhausted and not work.done:
            building = self._builders.busy
            if building >= self._builders.size or building + len(work.waiting) >= enough:
                return
            program = next(work.source, None)
            if program is None:
                work.exhausted = True
            elif not work.is_new(program):
                continue
            elif work.given_up:
                failure = Failure(FailureKind.DEVICE_LOST, work.given_up)
                work.answer(Measurement(program, failure=failure, started_at=time.time()))
            else:
                self._builders.build(program)

    def _listen(self, work: Round) -> None:
        """Wait for news from any worker, or for the first time limit to pass."""
        watched = {w.connection: w for w in (*self._builders.watched(), *self._devices.watched())}
        first = min((w.deadline for w in watched.values()), default=NEVER)
        speaking = wait(list(watched), min(max(first - time.monotonic(), 0.0), _TICK_S))
        now = time.monotonic()
        for connection, worker in watched.items():
            # One that has spoken is heard first, however late we come to listen.
            if connection in speaking:
                worker.hear(work)
            elif worker.deadline <= now:
                worker.expire(work)
