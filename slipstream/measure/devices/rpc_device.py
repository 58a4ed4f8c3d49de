"""The worker that holds one remote device: queues for it, uploads programs, times them, gives it back.

TVM's RPC client blocks in C++ and cannot be interrupted, so it lives in a process the measurer can kill. Each
message tells what the worker is about to do; the measurer sets the time limit that goes with it.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import rpc

from slipstream.measure.arena import Array, Slot, disagreement, numpy_type, random_values
from slipstream.measure.devices.rpc_messages import (
    Acquiring,
    Arguments,
    Connected,
    Connecting,
    DeviceOptions,
    Lost,
    Preparing,
    Ran,
    Released,
    Returned,
    RpcSettings,
    RunFailed,
    RunJob,
    Running,
    Wrong,
    packed_path,
)
from slipstream.measure.devices.rpc_tracker import Grant, Tracker
from slipstream.measure.devices.rpc_values import read_values
from slipstream.measure.guarded import poison
from slipstream.measure.timing.sampling import Samples, race

_PAUSE_S = 0.5
_OPERATORS_KEPT = 4


def run_on_device(connection: Connection, options: DeviceOptions) -> None:
    """Measure each `RunJob` on a session with some server, until a session breaks.

    A session ends when it has been idle or has lasted for long; a program that comes then is returned, so that
    it never waits here while another device is free.
    """
    alive = True
    while alive:
        session = _acquire(connection, options)
        try:
            alive = _use(connection, session, options.settings)
        finally:
            # A stock server ends for good if its client leaves without a word.
            session.close()


def _use(connection: Connection, session: _Session, settings: RpcSettings) -> bool:
    """Measure on one session while it lasts. False if it broke."""
    while True:
        if not connection.poll(settings.idle_seconds):
            session.close()
            connection.send(Released())
            if isinstance(connection.recv(), RunJob):
                connection.send(Returned())
            return True
        job: RunJob = connection.recv()
        # A server that went away while we had nothing for it is not this program's fault.
        if session.age() > settings.session_seconds or not session.answers():
            connection.send(Returned())
            return True
        try:
            answer: Ran | Wrong | RunFailed = _measure(connection, session, job)
        except Exception as error:
            if not session.answers():
                connection.send(Lost(_last_line(error)))
                return False
            answer = RunFailed(_last_line(error))
        session.remove(job)
        connection.send(answer)


def _measure(connection: Connection, session: _Session, job: RunJob) -> Ran | Wrong:
    connection.send(Preparing())
    started = time.monotonic()
    module = session.upload(job)
    uploaded = time.monotonic()
    arguments = session.arguments(job)
    connection.send(Running())
    running = time.monotonic()
    if job.values:
        module["main"](*arguments)
        if wrong := session.find_fault(job, arguments):
            return Wrong(wrong)
    samples = session.time(module, arguments, job.best)
    return Ran(
        samples.seconds,
        samples.stopped_early,
        verified=bool(job.values),
        seconds=time.monotonic() - running,
        upload_seconds=uploaded - started,
        allocate_seconds=running - uploaded,
    )


def _acquire(connection: Connection, options: DeviceOptions) -> _Session:
    """A session with whichever server the tracker gives us, however long that takes."""
    while True:
        connection.send(Acquiring())
        try:
            with Tracker(options.host, options.port) as tracker:
                grant = tracker.request(options.key, connection)
            connection.send(Connecting(grant.address))
            session = _Session(grant, options.settings)
            connection.send(Connected(grant.address, session.threads()))
        except EOFError:
            raise
        except Exception as error:
            # A server that died in the queue, or a tracker being restarted. The measurer knows when to stop.
            print(f"no session yet: {_last_line(error)}", file=sys.stderr)
            if connection.poll(_PAUSE_S):
                raise EOFError from error
        else:
            return session


class _Session:
    """One lease of a device. Inputs stay on it, so that every program of an operator runs on the same ones."""

    def __init__(self, grant: Grant, settings: RpcSettings) -> None:
        self._settings = settings
        self._opened = time.monotonic()
        self._remote = rpc.connect(grant.host, grant.port, grant.match_key, settings.longest_session)
        self._device = self._remote.cpu()
        # By operator and what it takes: the values, and those of them that are on the device.
        self._values: OrderedDict[tuple[str, Arguments], dict[int, Array]] = OrderedDict()
        self._inputs: dict[tuple[str, Arguments], dict[int, Any]] = {}

    def age(self) -> float:
        return time.monotonic() - self._opened

    def threads(self) -> int:
        return int(self._remote.get_function("runtime.NumThreads")())

    def answers(self) -> bool:
        """Whether the other side is still there."""
        try:
            self._remote.get_function("runtime.NumThreads")
        except Exception:
            return False
        return True

    def upload(self, job: RunJob) -> Any:
        """Put a program on the device."""
        self._remote.upload(job.path)
        return self._remote.load_module(Path(job.path).name)

    def time(self, module: Any, arguments: list[Any], best: float) -> Samples:
        """Race the program against `best`, by the clock of the device: what the network adds is not the program's."""
        spent = 0.0

        def sample(number: int, repeat: int) -> list[float]:
            nonlocal spent
            evaluate = module.time_evaluator("main", self._device, number=number, repeat=repeat)
            seconds = [float(result) for result in evaluate(*arguments).results]
            spent += number * sum(seconds)
            return seconds

        racing = self._settings.racing
        return race(lambda: sample(1, 1), sample, min(sample(1, 1)), best, racing, clock=lambda: spent)

    def remove(self, job: RunJob) -> None:
        """Remove a program's file from the device."""
        with suppress(Exception):  # it may never have arrived
            self._remote.remove(Path(job.path).name)

    def close(self) -> None:
        """Hand the device back. Nothing of this session may be used afterwards."""
        self._inputs.clear()
        with suppress(Exception):  # the other side may be gone
            self._remote._sess.get_function("CloseRPCConnection")()

    def arguments(self, job: RunJob) -> list[Any]:
        """The program's arguments on the device. Inputs are the same for every program of the operator."""
        key = (job.operator, job.arguments)
        if key not in self._values:
            while len(self._values) >= _OPERATORS_KEPT:
                self._inputs.pop(self._values.popitem(last=False)[0], None)
            self._values[key] = read_values(job.values, job.arguments) if job.values else _random_inputs(job)
        self._values.move_to_end(key)
        inputs = self._inputs.setdefault(key, {})
        packed = read_values(packed_path(job.path), job.arguments) if job.values and job.packed else {}
        tensors = []
        for index, (dtype, shape) in enumerate(job.arguments):
            if index in job.written:
                result = np.empty(shape, numpy_type(dtype))
                poison(result)
                tensors.append(tvm.runtime.tensor(result, self._device))
            elif index in packed:
                tensors.append(tvm.runtime.tensor(packed[index], self._device))
            else:
                if index not in inputs:
                    inputs[index] = tvm.runtime.tensor(self._values[key][index], self._device)
                tensors.append(inputs[index])
        return tensors

    def find_fault(self, job: RunJob, arguments: list[Any]) -> str:
        """What is wrong with the program's first run, or nothing."""
        key = (job.operator, job.arguments)
        for index, expected in self._values[key].items():
            if index in job.packed:
                continue
            actual = arguments[index].numpy()
            if index in job.written:
                if wrong := disagreement(actual, expected, self._settings.tolerance):
                    return wrong
            elif actual.tobytes() != expected.tobytes():
                del self._inputs[key]
                return f"changed argument {index}, which is an input"
        return ""


def _random_inputs(job: RunJob) -> dict[int, Array]:
    """Values for an operator nobody gave a reference for."""
    rng = np.random.default_rng(0)
    slots = [Slot(shape, dtype, written=False, offset=0) for dtype, shape in job.arguments]
    return {index: random_values(slot, rng) for index, slot in enumerate(slots)}


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
