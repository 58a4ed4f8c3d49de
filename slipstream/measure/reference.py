"""What each operator should compute: its inputs and expected results, made once per session by a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from zlib import crc32

from slipstream.errors import SlipstreamError
from slipstream.measure.config import MeasureConfig
from slipstream.measure.types import Failure, FailureKind
from slipstream.processes.channel import ChannelClosedError, Speaker
from slipstream.processes.fork_server import ForkServer, WorkerProcess

# The unscheduled function runs on one core and keeps nothing in registers.
_PLAIN_PATIENCE = 12


class State(StrEnum):
    """`ASKED`: a worker computes it. `LOST`: that worker's server ended; it has to be asked for again."""

    ASKED = "asked"
    READY = "ready"
    FAILED = "failed"
    LOST = "lost"


@dataclass
class Reference:
    """An operator's arguments in the file `arena`, laid out as `layout`; `plain`: by the unscheduled function."""

    arena: int
    state: State = State.LOST
    plain: bool = False
    layout: list[dict[str, Any]] = field(default_factory=list)
    failure: Failure | None = None
    worker: WorkerProcess | None = None
    deadline: float = 0.0


class References:
    """The references of all operators, computed by workers while programs are being built.

    The default program comes first, the unscheduled function if that fails, its results are doubted, or the operator is
    small.
    """

    def __init__(self, texts: Mapping[str, str], config: MeasureConfig) -> None:
        self._texts = dict(texts)
        self._config = config
        self._references: dict[str, Reference] = {}

    def __getitem__(self, operator: str) -> Reference:
        return self._references[operator]

    @property
    def asked(self) -> list[Reference]:
        """Those that workers compute now."""
        return [reference for reference in self._references.values() if reference.state is State.ASKED]

    def speakers(self) -> list[WorkerProcess]:
        """The workers that compute references now."""
        return [reference.worker for reference in self.asked if reference.worker is not None]

    def ask(self, operator: str, server: ForkServer) -> Reference:
        """The operator's reference; begins to compute it unless that was done and not lost."""
        if operator not in self._texts:
            raise SlipstreamError(f"cannot measure a program of operator {operator!r}: its reference was not given")
        if operator not in self._references:
            self._references[operator] = Reference(os.memfd_create("slipstream-arena", os.MFD_CLOEXEC))
        reference = self._references[operator]
        if reference.state is State.LOST:
            self._start(operator, server)
        return reference

    def doubt(self, operator: str, server: ForkServer) -> None:
        """Replace the default program's results by the unscheduled function's, unless that was done."""
        reference = self._references[operator]
        if not reference.plain:
            reference.plain = True
            self._start(operator, server)

    def collect(self, ready: Collection[Speaker], server: ForkServer) -> None:
        """Take in what the workers among `ready` have answered, and end those that take too long."""
        for operator, reference in self._references.items():
            if reference.state is not State.ASKED:
                continue
            if reference.worker not in ready and time.monotonic() < reference.deadline:
                continue
            failure = self._receive(reference, server)
            if failure is None:
                reference.state = State.READY
            elif reference.plain:
                reference.state, reference.failure = State.FAILED, failure
            else:
                reference.plain = True
                self._start(operator, server)

    def lose(self) -> None:
        """The server has ended, and with it the workers: what they were computing is lost."""
        for reference in self.asked:
            # A worker that is still ending may write to the old file.
            os.close(reference.arena)
            reference.arena = os.memfd_create("slipstream-arena", os.MFD_CLOEXEC)
            reference.state, reference.worker = State.LOST, None

    def close(self) -> None:
        for reference in self._references.values():
            os.close(reference.arena)
        self._references.clear()

    def _start(self, operator: str, server: ForkServer) -> None:
        reference = self._references[operator]
        # Asked from here on, so that it counts as lost if the server turns out to have ended.
        reference.state, reference.failure = State.ASKED, None
        reference.worker = server.fork("reference", reference.arena)
        patience = _PLAIN_PATIENCE if reference.plain else 1
        reference.deadline = time.monotonic() + self._config.build_seconds + patience * self._config.run_seconds
        seed = crc32(operator.encode()) ^ self._config.seed
        request = {"module": self._texts[operator], "seed": seed, "plain": reference.plain}
        try:
            reference.worker.channel.send({"reference": request})
        except ChannelClosedError:
            return  # `_receive` finds the end of the stream

    def _receive(self, reference: Reference, server: ForkServer) -> Failure | None:
        """The layout, or why there is none. The state changes only when that is known: the server may be lost here."""
        worker = reference.worker
        assert worker is not None
        try:
            answer = worker.channel.receive(0.0)
            failure = _about(answer["message"], worker) if "failure" in answer else None
            reference.layout = answer.get("layout", [])
            reference.plain = answer.get("plain", reference.plain)
        except TimeoutError:
            failure = _about("it took too long", worker)
        except ChannelClosedError:
            failure = _about(server.end_of(worker).reason, worker)
        reference.worker = None
        server.discard(worker)
        return failure


def _about(message: str, worker: WorkerProcess) -> Failure:
    text = f"the operator itself could not be run to compare with: {message}"
    return Failure(FailureKind.RUN_ERROR, text, worker.last_lines())


def reference_text(func: Any) -> str:
    """An unscheduled TIR function (`Operator.func`) as the text that a measurer takes."""
    import tvm

    return str(tvm.ir.save_json(tvm.IRModule({"main": func.with_attr("global_symbol", "main")})))
