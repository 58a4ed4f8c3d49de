"""Remote devices, through TVM's RPC tracker and servers: which are connected, what runs on them, which have failed.

Each device is held by a worker (`rpc_session.py`) that reports every step it takes; the limits for them are set here.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from slipstream.measure.config import MeasureConfig
from slipstream.measure.devices.base import Comparison, DeviceLostError, Devices, Outcome
from slipstream.measure.devices.rpc_attempts import Attempt, Mishap, conclude
from slipstream.measure.devices.rpc_tracker import DeviceError, Tracker
from slipstream.measure.timing.noise import MOST_WAITING, Drift
from slipstream.measure.trial import Answer, Trial, failure_in
from slipstream.processes.channel import Channel, ChannelClosedError, Speaker
from slipstream.processes.fork_server import ForkServer, WorkerProcess

_CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class ConnectedServer:
    """A server, the threads its programs run on, and the class of its hardware; empty if it is TVM's own."""

    address: str
    threads: int
    hardware: str


@dataclass(eq=False)
class _Held:
    """A worker and the device it holds or waits for. `running_since` is when the program started there."""

    worker: WorkerProcess
    address: str = ""
    server: ConnectedServer | None = None
    connected: bool = False
    released: bool = False
    trial: Trial | None = None
    running_since: float | None = None
    deadline: float = math.inf

    @property
    def channel(self) -> Channel:
        return self.worker.channel

    def send(self, request: dict[str, Any]) -> None:
        with suppress(ChannelClosedError):  # that it has ended is noticed when its answer is read
            self.channel.send(request)

    def take_trial(self) -> Trial | None:
        """The program it had, which counts the time that it ran in vain."""
        trial, self.trial = self.trial, None
        if trial is not None and self.running_since is not None:
            trial.lost_run_seconds += time.monotonic() - self.running_since
        self.running_since, self.deadline = None, math.inf
        return trial


class RpcDevices(Devices):
    """The devices registered under `key` with the tracker at `host`:`port`; `threads` is what the target has."""

    def __init__(self, host: str, port: int, key: str, threads: int, config: MeasureConfig) -> None:
        super().__init__()
        Tracker(host, port).close()
        self._where = (host, port, key)
        self._threads = threads
        self._config = config
        self._remote = config.remote
        self.most_waiting = 2.0 * self._remote.devices
        remote = config.remote
        # A server ends a session that lasts longer: that frees a stock one from a program that hangs.
        longest = remote.session_seconds + remote.device_seconds + config.run_seconds
        lasts = {"idle_seconds": remote.idle_seconds, "session_seconds": remote.session_seconds}
        self.server_options = {"rpc": {"host": host, "port": port, "key": key, "longest_session": longest, **lasts}}
        self._held: list[_Held] = []
        self._probe_builder: WorkerProcess | None = None
        self._probe_library, self._probe_asked = "", False
        self._warned: set[str] = set()
        self._seen_at = self._checked_at = time.monotonic()
        self._unavailable = ""
        self._comparison = Comparison[_Held]()

    def attach(self, server: ForkServer) -> None:
        super().attach(server)
        self._held.clear()
        self._comparison.clear()
        self._probe_library, self._probe_asked, self._probe_builder = "", False, None

    def acquire(self, waiting: int) -> str:
        if not self._probe_asked:
            self._probe_asked = True
            self._probe_builder = self._server.fork("build")
            self._probe_builder.channel.send({"generate_probe": {"path": str(self._server.scratch / "probe.so")}})
        while len(self._held) < self._remote.devices:
            self._held.append(_Held(self._server.fork("hold device", has_grace=True)))
        for held in self._held:
            if held.released and waiting:
                held.released = False
                held.send({"acquire": {}})
        return self._check_patience(waiting)

    def connected(self) -> list[ConnectedServer]:
        """The servers that are held now."""
        return [held.server for held in self._held if held.connected and held.server is not None]

    def is_free(self, trial: Trial) -> bool:
        return self._choose(trial) is not None

    def start(self, trial: Trial, request: dict[str, Any], *, keep: bool) -> None:
        held = self._choose(trial)
        assert held is not None
        self._comparison.started(held, trial.library, keep=keep)
        held.trial = trial
        trial.start_running(math.inf)
        held.deadline = trial.run_began + self._remote.device_seconds
        packs = any(slot["weight"] for slot in request["layout"])
        module = trial.program.module if packs else ""
        held.send({"launch": {**request, "keep": keep, "module": module, "probe": self._probe_library}})

    def speakers(self) -> Sequence[Speaker]:
        probe = [self._probe_builder] if self._probe_builder is not None else []
        return [*self._held, *probe]

    def collect(self, ready: Collection[Speaker]) -> Iterator[tuple[Trial, Outcome]]:
        if self._probe_builder in ready:
            self._note_probe()
        now = time.monotonic()
        for held in list(self._held):
            # What a worker has sent counts, however late it is read.
            if held in ready:
                outcome = self._receive(held)
            elif held.deadline <= now:
                outcome = self._lose(held, Mishap.STALLED if held.running_since is None else Mishap.TOO_LONG)
            else:
                continue
            if outcome is not None:
                yield outcome

    def only_one(self) -> AbstractContextManager[None]:
        return self._comparison.on_one_device()

    def sample(self, trial: Trial, number: int) -> float:
        answer = self._ask({"sample": {"library": trial.library, "number": number, "repeat": 1}})
        if answer is None or "samples" not in answer:
            raise DeviceLostError("the remote device failed while it compared programs")
        return float(answer["samples"][0])

    def time_probe(self) -> list[float]:
        """The reference kernel's times now, on the device that was last chosen; none if it is not built or failed."""
        if not self._probe_library:
            return []
        answer = self._ask({"probe": {"library": self._probe_library}})
        return list(answer.get("probe", ())) if answer is not None else []

    def release(self, trial: Trial) -> None:
        if trial.library in self._comparison.kept:
            self._comparison.kept.discard(trial.library)
            self._ask({"forget": {"library": trial.library}})
        super().release(trial)

    def abandon(self) -> None:
        """Forget what runs; its devices go back to the tracker when they have finished."""
        for held in [held for held in self._held if held.trial is not None]:
            self._held.remove(held)
            self._server.dismiss(held.worker)

    def _choose(self, trial: Trial) -> _Held | None:
        """An idle device; for another attempt, one that has not failed with this program if there is any."""
        connected = [held for held in self._held if held.connected]
        if self._comparison.is_on and self._comparison.chosen in connected:
            connected = [self._comparison.chosen]
        failed = {attempt.address for attempt in trial.mishaps}
        others = {held.address for held in connected} - failed
        idle = [held for held in connected if held.trial is None]
        return next((held for held in idle if held.address not in failed or not others), None)

    def _receive(self, held: _Held) -> tuple[Trial, Outcome] | None:
        try:
            message = held.channel.receive(1.0)
        except (ChannelClosedError, TimeoutError):
            return self._lose(held, Mishap.BROKE, held.worker.last_lines() or "its worker ended")
        state, now = message.pop("state"), time.monotonic()
        if state == "acquiring":
            held.connected, held.deadline = False, math.inf
        elif state == "connecting":
            held.address, held.deadline = message["address"], now + self._remote.device_seconds
        elif state == "connected":
            held.connected, held.deadline = True, math.inf
            held.server = ConnectedServer(**message)
            self._compare_threads(held.server)
        elif state == "released":
            held.connected, held.released = False, True
        elif state == "preparing":
            held.deadline = now + self._remote.device_seconds
        elif state == "running":
            held.running_since, held.deadline = now, now + self._config.run_seconds
        elif state == "returned":
            held.connected = held.released = False
            trial = held.take_trial()
            return None if trial is None else (trial, None)
        elif state == "lost":
            return self._lose(held, Mishap.BROKE, message["message"])
        elif state == "ran" and held.trial is not None:
            return self._ran(held, message)
        return None

    def _ran(self, held: _Held, answer: Answer) -> tuple[Trial, Outcome] | None:
        drift = self.drifts.setdefault(held.address, Drift())
        if answer.get("probe"):
            drift.add(answer["probe"])
        if "failure" in answer:
            trial = held.take_trial()
            return None if trial is None else (trial, failure_in(answer, held.worker.last_lines()))
        held.running_since = None  # its time is in the answer
        trial = held.take_trial()
        waited = answer["waited_seconds"] > MOST_WAITING * answer["run_seconds"]
        return None if trial is None else (trial, {**answer, "noisy": waited or drift.is_busy})

    def _lose(self, held: _Held, mishap: Mishap, message: str = "") -> tuple[Trial, Outcome] | None:
        """End a device's worker; the program it had is tried again unless it has failed too often."""
        self._held.remove(held)
        self._server.discard(held.worker)
        trial = held.take_trial()
        if trial is None:
            return None
        self._comparison.lost(held, f"{mishap} on {held.address}")
        trial.mishaps.append(Attempt(mishap, held.address, message))
        return trial, conclude(trial.mishaps, self._remote.attempts)

    def _ask(self, request: dict[str, Any]) -> Answer | None:
        """The answer of the device that has the finalists; None if it has failed."""
        held = self._comparison.chosen
        if held is None or held not in self._held:
            return None
        held.send(request)
        deadline = time.monotonic() + self._remote.device_seconds + self._config.run_seconds
        with suppress(ChannelClosedError, TimeoutError):
            while True:
                message = held.channel.receive(max(0.0, deadline - time.monotonic()))
                if message["state"] == "ran":
                    return message
                if message["state"] != "preparing":
                    break
        self._held.remove(held)
        self._server.discard(held.worker)
        return None

    def _note_probe(self) -> None:
        """The reference kernel is built, or cannot be: then no device is called busy because of it."""
        builder, self._probe_builder = self._probe_builder, None
        assert builder is not None
        with suppress(ChannelClosedError, TimeoutError):
            if "failure" not in builder.channel.receive(1.0):
                self._probe_library = str(self._server.scratch / "probe.so")
        self._server.discard(builder)

    def _check_patience(self, waiting: int) -> str:
        """Why programs that wait for a device are given up."""
        now = time.monotonic()
        if any(held.connected for held in self._held):
            self._seen_at, self._unavailable = now, ""
        if not waiting:
            self._seen_at = now
        waited = now - self._seen_at
        if waited >= self._remote.patience_seconds and now - self._checked_at >= _CHECK_SECONDS:
            self._checked_at = now
            self._unavailable = self._why_unavailable(waited)
        return self._unavailable

    def _why_unavailable(self, waited: float) -> str:
        """Empty while there are servers that others may be using."""
        host, port, key = self._where
        where = f"key {key!r} at the tracker {host}:{port}"
        try:
            with Tracker(host, port) as tracker:
                servers = tracker.servers(key)
        except DeviceError as error:
            return str(error)
        if not servers:
            return f"no server with {where} for {waited:.0f} s"
        if waited >= self._remote.queue_seconds:
            return f"queued {waited:.0f} s in vain for {', '.join(servers)} with {where}"
        return ""

    def _compare_threads(self, server: ConnectedServer) -> None:
        if server.threads != self._threads and server.address not in self._warned:
            self._warned.add(server.address)
            warnings.warn(
                f"the server {server.address} runs code on {server.threads} threads, the target has {self._threads}: "
                f"start it with --threads (ours) or TVM_NUM_THREADS (TVM's)",
                stacklevel=2,
            )
