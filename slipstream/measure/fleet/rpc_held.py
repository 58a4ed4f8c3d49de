"""The RPC devices of a node: each is held by the session's actor there for as long as that lives.

They are measured on by the code of a session without a fleet (`devices/rpc.py`), one instance for each device, so what
is concluded from failures is the same. A device that does not come back is a failure of the node.
"""

from __future__ import annotations

import select
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from slipstream.measure.config import MeasureConfig, RemoteConfig
from slipstream.measure.devices.base import DeviceLostError, Outcome
from slipstream.measure.devices.rpc import ConnectedServer, RpcDevices
from slipstream.measure.devices.rpc_tracker import DeviceError, Tracker, parse_address
from slipstream.measure.trial import Answer, Trial
from slipstream.measure.types import Candidate, Failure, FailureKind
from slipstream.processes.fork_server import ForkServer, WorkerProcess

RPC_DEVICE = "rpc-"
# What a run may take beyond its limit, which a program that never ends uses up twice: connecting again meanwhile.
AROUND_A_RUN = 60.0
_TICK_SECONDS = 0.05
_WHOLE_SESSION = 1e6
_CONNECT_SECONDS = 90.0
# For further servers under the key once one is connected: they may be others' for long.
_OTHERS_SECONDS = 5.0
_REMOTE = RemoteConfig(
    devices=1,
    device_seconds=10.0,
    patience_seconds=30.0,
    queue_seconds=30.0,
    idle_seconds=_WHOLE_SESSION,
    session_seconds=_WHOLE_SESSION,
    attempts=2,
)


class _SharedServer:
    """What RPC devices use of a fork server, for several threads, and a folder of their own."""

    def __init__(self, server: ForkServer, lock: threading.RLock, name: str) -> None:
        self._server, self._lock = server, lock
        self.scratch = server.scratch / name
        self.scratch.mkdir()

    def fork(self, role: str, *, has_grace: bool = False) -> WorkerProcess:
        with self._lock:
            return self._server.fork(role, has_grace=has_grace)

    def discard(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._server.discard(worker)


class HeldRpcDevice:
    """A device of those that `where` says: a tracker's HOST:PORT and a key. Each method may be called by any thread."""

    def __init__(self, where: str, threads: int, config: MeasureConfig) -> None:
        tracker, key = where.split()
        self._devices = RpcDevices(*parse_address(tracker), key, threads, replace(config, remote=_REMOTE))
        self.server_options = self._devices.server_options
        self._kept: dict[str, Trial] = {}
        self._turn = threading.Lock()
        self._on_one = ExitStack()

    def attach(self, server: ForkServer, lock: threading.RLock, name: str) -> None:
        self._devices.attach(cast(ForkServer, _SharedServer(server, lock, name)))
        self._on_one.enter_context(self._devices.only_one())

    def connect(self, seconds: float) -> ConnectedServer | None:
        """The server it holds, if there is one within so many seconds."""
        deadline = time.monotonic() + seconds
        with self._turn:
            while not (servers := self._devices.connected()) and time.monotonic() < deadline:
                self._devices.acquire(0)
                self._step()
        return servers[0] if servers else None

    def run(self, name: str, launch: dict[str, Any], module: str) -> Answer | Failure:
        """The answer to a run of `launch["library"]`, a file here. It is tried again if the device fails meanwhile."""
        trial = Trial(Candidate(launch["operator"], module), library=launch["library"])
        with self._turn:
            self._devices.acquire(0)  # from now on it is waited for
            outcome: Outcome = None
            while outcome is None:
                while not self._devices.is_free(trial):
                    if unavailable := self._devices.acquire(1):
                        raise DeviceError(unavailable)
                    self._step()
                self._devices.start(trial, launch, keep=launch["keep"])
                ended: list[Outcome] = []
                try:
                    while not ended:
                        ended = self._step()
                except DeviceLostError as lost:
                    return Failure(FailureKind.DEVICE_LOST, str(lost))
                outcome = ended[0]
            if launch["keep"] and not isinstance(outcome, Failure):
                self._kept[name] = trial
            return outcome

    def sample(self, name: str, number: int) -> Answer | Failure:
        """One more sample of a program that was kept."""
        with self._turn:
            try:
                return {"samples": [self._devices.sample(self._kept[name], number)]}
            except (DeviceLostError, KeyError) as lost:
                return Failure(FailureKind.DEVICE_LOST, str(lost))

    def forget(self, name: str) -> None:
        """Free a program that was kept."""
        with self._turn:
            if (trial := self._kept.pop(name, None)) is not None:
                self._devices.release(trial)

    def probe(self) -> list[float]:
        """The reference kernel's times."""
        with self._turn:
            return self._devices.time_probe()

    def _step(self) -> list[Outcome]:
        """How runs have ended within a moment."""
        speakers = {speaker.channel.fileno(): speaker for speaker in self._devices.speakers()}
        poll = select.poll()
        for descriptor in speakers:
            poll.register(descriptor, select.POLLIN)
        ready = [speakers[descriptor] for descriptor, _ in poll.poll(1000 * _TICK_SECONDS)]
        return [outcome for _, outcome in self._devices.collect(ready)]


def rpc_devices(where: str, threads: int, config: MeasureConfig) -> dict[str, HeldRpcDevice]:
    """A device for every server that is registered now; `DeviceError` if there is none."""
    tracker, key = where.split()
    with Tracker(*parse_address(tracker)) as asked:
        count = len(asked.servers(key))
    if not count:
        raise DeviceError(f"no server with the key {key!r} at the tracker {tracker}")
    return {f"{RPC_DEVICE}{number}": HeldRpcDevice(where, threads, config) for number in range(count)}


def connect(devices: dict[str, HeldRpcDevice], hardware: str, threads: int) -> list[str]:
    """The names of the devices that are connected, all of which have this `hardware` and so many `threads`."""
    found: list[str] = []
    for name, device in devices.items():
        server = device.connect(_OTHERS_SECONDS if found else _CONNECT_SECONDS)
        if server is None:
            continue
        if server.hardware != hardware:
            there = server.hardware or "unknown to us, since it is TVM's own"
            raise DeviceError(
                f"the hardware of the RPC server {server.address} is {there}, not of the class {hardware}"
            )
        if server.threads != threads:
            what = f"runs code on {server.threads} threads, the target has {threads}"
            raise DeviceError(f"the RPC server {server.address} {what}: start it with --threads {threads}")
        found.append(name)
    if not found:
        raise DeviceError(f"no RPC server could be had for {_CONNECT_SECONDS:.0f} s: others may be using all")
    return found
