"""The builders of a measurer: programs go in, shared libraries come out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection

from slipstream.machine.target import Target
from slipstream.measure.devices.rpc_messages import BuilderOptions, BuildFailed, BuildJob, Built, RpcSettings
from slipstream.measure.devices.rpc_nursery import Nursery, Worker
from slipstream.measure.devices.rpc_trials import Round, Trial
from slipstream.measure.trial import MEMORY_WORDS
from slipstream.measure.types import Candidate, Failure, FailureKind

NEVER = float("inf")


@dataclass(frozen=True)
class Watched:
    """A worker to listen to: `hear` when it speaks, `expire` when it has not by `deadline`."""

    connection: Connection
    deadline: float
    hear: Callable[[Round], None]
    expire: Callable[[Round], None]


@dataclass(eq=False)
class _Builder:
    worker: Worker
    trial: Trial | None = None
    deadline: float = NEVER


class BuilderPool:
    """Up to `size` processes that build. One that dies or takes too long costs its program only."""

    def __init__(
        self, nursery: Nursery, target: Target, size: int, settings: RpcSettings, references: Mapping[str, str]
    ) -> None:
        self._nursery = nursery
        # A copy: what TVM made of the target stays in this process.
        self._options = BuilderOptions(replace(target), settings.memory_bytes)
        self._timeout = settings.build_timeout
        self._references = dict(references)
        self._builders: list[_Builder] = []
        self._count = 0
        self.size = size

    @property
    def busy(self) -> int:
        """How many programs are being built."""
        return sum(builder.trial is not None for builder in self._builders)

    def build(self, program: Candidate) -> None:
        """Start building. There must be room: `busy` below `size`."""
        builder = next((b for b in self._builders if b.trial is None), None)
        if builder is None:
            builder = _Builder(self._nursery.start("build", self._options))
            self._builders.append(builder)
        self._count += 1
        library = self._nursery.directory / f"program-{self._count}.so"
        reference = self._references.get(program.operator, "")
        name = f"values-{hashlib.sha256(program.operator.encode()).hexdigest()}"
        values = str(self._nursery.directory / name) if reference else ""
        builder.trial = Trial(program, library, time.time(), values)
        builder.deadline = time.monotonic() + self._timeout
        builder.worker.send(BuildJob(program.module, str(library), reference, values))

    def watched(self) -> list[Watched]:
        return [
            Watched(b.worker.connection, b.deadline, partial(self._hear, b), partial(self._expire, b))
            for b in self._builders
        ]

    def abandon(self) -> None:
        """Forget what is being built."""
        for builder in [b for b in self._builders if b.trial is not None]:
            self._remove(builder)

    def _hear(self, builder: _Builder, work: Round) -> None:
        try:
            message: Built | BuildFailed = builder.worker.connection.recv()
        except (EOFError, OSError):
            said = builder.worker.last_lines()
            if any(word in said for word in MEMORY_WORDS):
                self._end(builder, work, FailureKind.OUT_OF_MEMORY, "the compiler ran out of memory")
            else:
                self._end(builder, work, FailureKind.CRASH, "the compiler crashed")
            return
        trial, builder.trial, builder.deadline = builder.trial, None, NEVER
        assert trial is not None
        trial.build_seconds = message.seconds
        if isinstance(message, BuildFailed):
            failure = Failure(message.kind, message.message, builder.worker.last_lines())
            work.finish(trial, trial.measurement(failure=failure))
            return
        trial.arguments, trial.fingerprint = message.arguments, message.fingerprint
        trial.written, trial.packed = message.written, message.packed
        trial.link_seconds = message.link_seconds
        work.built(trial)

    def _expire(self, builder: _Builder, work: Round) -> None:
        self._end(builder, work, FailureKind.BUILD_TIMEOUT, f"not built after {self._timeout:g} s")

    def _end(self, builder: _Builder, work: Round, kind: FailureKind, message: str) -> None:
        failure = Failure(kind, message, builder.worker.last_lines())
        trial = builder.trial
        self._remove(builder)
        if trial is not None:
            trial.build_seconds = time.time() - trial.started_at
            work.finish(trial, trial.measurement(failure=failure))

    def _remove(self, builder: _Builder) -> None:
        self._builders.remove(builder)
        self._nursery.kill(builder.worker)
