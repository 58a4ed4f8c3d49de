"""The worker that holds one remote device: it queues for it, runs programs on it, and gives it back.

TVM's RPC client blocks in C++ and cannot be interrupted, so it runs in a process that can be killed. Each message says
what the worker is about to do; the owner sets the time limit for it (`rpc.py`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import rpc

from slipstream.measure.checked_run import Answer, Checked, failure_of
from slipstream.measure.devices.launcher import Arguments, Launcher, Loaded
from slipstream.measure.devices.rpc_functions import HARDWARE_CLASS, TIME_IN_TURN, WAITS, Plan
from slipstream.measure.devices.rpc_tracker import Grant, Tracker
from slipstream.measure.lowering import packings_of, read_module
from slipstream.measure.timing.cold_weights import copies_needed
from slipstream.measure.timing.noise import PROBE_SECONDS, PROBE_SIZE, Waits, sample_probe
from slipstream.measure.types import FailureKind
from slipstream.processes.channel import Channel

_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class RpcOptions:
    """Which devices to ask for, when to give one back, and when its server may end the session by force."""

    host: str
    port: int
    key: str
    idle_seconds: float
    session_seconds: float
    longest_session: float


def hold_device(options: RpcOptions, channel: Channel, files: list[int]) -> None:
    """Run programs on a session with some server, until a session breaks.

    A session ends when it has been idle or has lasted for long; a program that comes then is returned, so that it
    never waits here while another device is free.
    """
    alive = True
    while alive:
        session = _acquire(channel, options)
        try:
            alive = _use(channel, session, options)
        finally:
            # A stock server ends if its client leaves without closing the session.
            session.close()


def _use(channel: Channel, session: Session, options: RpcOptions) -> bool:
    """Run programs on one session while it lasts. False if it broke."""
    while True:
        if not channel.is_readable(options.idle_seconds):
            session.close()
            channel.send({"state": "released"})
            if "acquire" not in channel.receive():
                channel.send({"state": "returned"})
            return True
        request = channel.receive()
        # A server that ended while it had no program is no failure of this one. Finalists need most of a session.
        limit = options.session_seconds / (2 if request.get("launch", {}).get("keep") else 1)
        if "acquire" in request:
            continue
        if not session.has_kept and (session.age() > limit or not session.answers()):
            channel.send({"state": "returned"})
            return True
        try:
            answer = session.launcher.do(request)
        except Exception as error:
            if not session.answers():
                channel.send({"state": "lost", "message": _last_line(error)})
                return False
            answer = failure_of(error, FailureKind.RUN_ERROR)
        channel.send({"state": "ran", **answer})


def _acquire(channel: Channel, options: RpcOptions) -> Session:
    """A session with whichever server the tracker assigns, however long that takes."""
    while True:
        channel.send({"state": "acquiring"})
        try:
            with Tracker(options.host, options.port) as tracker:
                grant = tracker.request(options.key, channel)
            channel.send({"state": "connecting", "address": grant.address})
            session = Session(grant, options.longest_session, channel)
            facts = {"threads": session.threads(), "hardware": session.hardware()}
            channel.send({"state": "connected", "address": grant.address, **facts})
        except EOFError:
            raise
        except Exception as error:
            # A server that ended in the queue, or a tracker being restarted. The owner decides when to stop.
            print(f"no session yet: {_last_line(error)}", file=sys.stderr)
            if channel.is_readable(_PAUSE_SECONDS):
                raise EOFError from error
        else:
            return session


class Session:
    """One lease of a device."""

    def __init__(self, grant: Grant, longest: float, channel: Channel) -> None:
        self._opened = time.monotonic()
        self._remote = rpc.connect(grant.host, grant.port, grant.match_key, longest)
        self.launcher = RemoteLauncher(self._remote, channel)

    @property
    def has_kept(self) -> bool:
        return self.launcher.has_kept

    def age(self) -> float:
        return time.monotonic() - self._opened

    def threads(self) -> int:
        return int(self._remote.get_function("runtime.NumThreads")())

    def hardware(self) -> str:
        """The class of the device's hardware; empty if the server is TVM's own, which does not say it."""
        return self.launcher.hardware()

    def answers(self) -> bool:
        """Whether the server still answers."""
        try:
            self._remote.get_function("runtime.NumThreads")
        except Exception:
            return False
        return True

    def close(self) -> None:
        """Hand the device back. Nothing of this session may be used afterwards."""
        self.launcher.clear()
        with suppress(Exception):  # the server may have ended
            self._remote._sess.get_function("CloseRPCConnection")()


class RemoteLauncher(Launcher):
    """Runs programs on a remote CPU. What only our server offers (`rpc_functions.py`) is left out on TVM's."""

    def __init__(self, remote: Any, channel: Channel) -> None:
        super().__init__(remote.cpu())
        self._remote = remote
        self._channel = channel
        self._spent = 0.0
        self._probe: Loaded | None = None
        self._probed_at = -PROBE_SECONDS
        self._time_in_turn = self._function(TIME_IN_TURN)
        self._waits = self._function(WAITS)

    def do(self, request: dict[str, Any]) -> Answer:
        """Do one job; raises what the RPC client raises. A launch also times the reference kernel now and then."""
        (job, options), *_ = request.items()
        self._channel.send({"state": "preparing"})
        if job == "sample":
            return self.sample(**options)
        if job == "forget":
            return self.forget(**options)
        if job == "probe":
            return {"probe": self._time_probe(options["library"], 0.0)}
        probe = self._time_probe(options.pop("probe"), PROBE_SECONDS)
        return {**self.launch(**options), "probe": probe}

    def clear(self) -> None:
        self._arguments.clear()
        self._kept.clear()
        self._probe = None

    def hardware(self) -> str:
        describe = self._function(HARDWARE_CLASS)
        return "" if describe is None else str(describe())

    def _function(self, name: str) -> Any:
        try:
            return self._remote.get_function(name)
        except Exception:
            return None

    def _load(self, library: str) -> Any:
        name = Path(library).name
        self._remote.upload(library)
        module = self._remote.load_module(name)
        self._remote.remove(name)
        return module

    def _bind(self, code: Any, arguments: Arguments, module: str, model_weights: int) -> Loaded:
        tensors = list(arguments.tensors)
        packed = []
        for packing in packings_of(read_module(module)["main"]) if module else []:
            weight = packing(arguments.expected[packing.index])
            tensors[packing.index] = tvm.runtime.tensor(weight, self._device)
            packed.append(packing.index)
        weights = arguments.layout.weights
        return Loaded(code, tensors, packed, weights, self._copy_weights(tensors, weights, model_weights))

    def _copy_weights(self, tensors: list[Any], weights: Sequence[int], model_weights: int) -> list[list[Any]]:
        """Copies made on the device: nothing is sent."""
        if self._time_in_turn is None:
            return []
        size = sum(int(np.prod(tensors[i].shape)) * tvm.DataType(tensors[i].dtype).itemsize for i in weights)
        copies = []
        for _ in range(copies_needed(size, model_weights)):
            empty = [tvm.runtime.empty(tensors[i].shape, tensors[i].dtype, self._device) for i in weights]
            copies.append([tensors[i].copyto(copy) for i, copy in zip(weights, empty, strict=True)])
        return copies

    def _checked(self, loaded: Loaded, find_fault: Callable[[], str]) -> Checked:
        self._channel.send({"state": "running"})

        def sample(number: int, repeat: int) -> Sequence[float]:
            seconds = self._take(loaded, number, repeat)
            self._spent += number * sum(seconds)
            return seconds

        def first() -> float:
            loaded.module["main"](*loaded.tensors)
            return min(sample(1, 1))

        # By the clock of the device: what the network adds is not the program's.
        return Checked(first, find_fault, lambda: sample(1, 1), sample, lambda: self._spent, self._read_waits)

    def _read_waits(self) -> Waits:
        return {} if self._waits is None else dict(json.loads(self._waits()))

    def _take(self, loaded: Loaded, number: int, repeat: int) -> Sequence[float]:
        if not loaded.weight_copies:
            return super()._take(loaded, number, repeat)
        copies = [tensor for copy in loaded.weight_copies for tensor in copy]
        plan = Plan(number, repeat, len(loaded.tensors), tuple(loaded.weights))
        seconds: list[float] = json.loads(self._time_in_turn(plan.to_json(), loaded.module, *loaded.tensors, *copies))
        return seconds

    def _time_probe(self, library: str, seconds: float) -> list[float]:
        """The reference kernel's times, if it was not timed in the last so many seconds and `library` is there."""
        if not library or time.monotonic() - self._probed_at < seconds:
            return []
        if self._probe is None:
            matrix = np.ones((PROBE_SIZE, PROBE_SIZE), np.float32)
            self._probe = Loaded(self._load(library), [tvm.runtime.tensor(matrix, self._device) for _ in range(3)])
        self._probed_at = time.monotonic()
        return sample_probe(partial(self._take, self._probe))


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
