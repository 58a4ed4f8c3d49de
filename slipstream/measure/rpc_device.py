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

from slipstream.measure.arena import Slot, random_values
from slipstream.measure.rpc_messages import (
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
)
from slipstream.measure.rpc_tracker import Grant, Tracker

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
            answer: Ran | RunFailed = _measure(connection, session, job)
        except Exception as error:
            if not session.answers():
                connection.send(Lost(_last_line(error)))
                return False
            answer = RunFailed(_last_line(error))
        session.remove(job)
        connection.send(answer)


def _measure(connection: Connection, session: _Session, job: RunJob) -> Ran:
    connection.send(Preparing())
    started = time.monotonic()
    evaluate = session.upload(job)
    uploaded = time.monotonic()
    inputs = session.inputs(job)
    connection.send(Running())
    running = time.monotonic()
    samples = tuple(float(seconds) for seconds in evaluate(*inputs).results)
    return Ran(samples, time.monotonic() - running, uploaded - started, running - uploaded)


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
        self._inputs: OrderedDict[tuple[str, Arguments], list[Any]] = OrderedDict()

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
        """Put a program on the device. What comes back times it, given its inputs."""
        self._remote.upload(job.path)
        module = self._remote.load_module(Path(job.path).name)
        settings = self._settings
        shortest = round(settings.sample_seconds * 1e3)
        return module.time_evaluator("main", self._device, number=1, repeat=settings.samples, min_repeat_ms=shortest)

    def remove(self, job: RunJob) -> None:
        """Remove a program's file from the device."""
        with suppress(Exception):  # it may never have arrived
            self._remote.remove(Path(job.path).name)

    def close(self) -> None:
        """Hand the device back. Nothing of this session may be used afterwards."""
        self._inputs.clear()
        with suppress(Exception):  # the other side may be gone
            self._remote._sess.get_function("CloseRPCConnection")()

    def inputs(self, job: RunJob) -> list[Any]:
        """Random values on the device, the same for every program of the operator that takes the same arguments."""
        key = (job.operator, job.arguments)
        if key not in self._inputs:
            while len(self._inputs) >= _OPERATORS_KEPT:
                self._inputs.popitem(last=False)
            rng = np.random.default_rng(0)
            slots = [Slot(shape, dtype, written=False, offset=0) for dtype, shape in job.arguments]
            self._inputs[key] = [tvm.runtime.tensor(random_values(slot, rng), self._device) for slot in slots]
        self._inputs.move_to_end(key)
        return self._inputs[key]


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
