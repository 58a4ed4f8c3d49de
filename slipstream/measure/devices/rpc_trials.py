"""Programs on their way through building and devices, and what to conclude when devices fail under one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from slipstream.measure.devices.rpc_messages import Arguments, packed_path
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement

_TO_BE_SURE = 2


class Mishap(StrEnum):
    """How a device failed while it had a program."""

    BROKE = "the connection broke"
    TOO_LONG = "the run took too long"
    STALLED = "the server stopped answering"


@dataclass(frozen=True)
class Attempt:
    """What happened, on which server, and what the client said about it."""

    mishap: Mishap
    address: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.mishap} on {self.address}"


@dataclass
class Trial:
    """A program and what is known of it so far."""

    program: Candidate
    library: Path
    started_at: float
    values: str = ""
    arguments: Arguments = ()
    written: tuple[int, ...] = ()
    packed: tuple[int, ...] = ()
    fingerprint: str = ""
    build_seconds: float = 0.0
    link_seconds: float = 0.0
    run_seconds: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)

    def remove_files(self) -> None:
        self.library.unlink(missing_ok=True)
        Path(packed_path(str(self.library))).unlink(missing_ok=True)

    @property
    def tried_on(self) -> set[str]:
        return {attempt.address for attempt in self.attempts}

    def measurement(
        self,
        samples: tuple[float, ...] = (),
        failure: Failure | None = None,
        *,
        stopped_early: bool = False,
        verified: bool = False,
        allocate_seconds: float = 0.0,
        overhead_seconds: float = 0.0,
    ) -> Measurement:
        return Measurement(
            self.program,
            samples,
            failure,
            stopped_early=stopped_early,
            verified=verified,
            build_seconds=self.build_seconds,
            load_seconds=self.link_seconds,
            allocate_seconds=allocate_seconds,
            run_seconds=self.run_seconds,
            overhead_seconds=overhead_seconds,
            started_at=self.started_at,
        )


@dataclass
class Round:
    """One call of `measure`: what waits for a device, what is known, and which programs are the same."""

    source: Iterator[Candidate]
    # The fastest program of each operator; the measurer's own.
    best: dict[str, Measurement] = field(default_factory=dict)
    waiting: deque[Trial] = field(default_factory=deque)
    done: deque[Measurement] = field(default_factory=deque)
    exhausted: bool = False
    # Why programs are no longer tried at all, while that is so.
    given_up: str = ""
    _known: dict[str, Measurement] = field(default_factory=dict)
    _twins: dict[str, list[Candidate]] = field(default_factory=dict)
    _first_with_code: dict[tuple[str, str], Candidate] = field(default_factory=dict)
    _same: dict[str, str] = field(default_factory=dict)

    def is_new(self, program: Candidate) -> bool:
        """Whether a program must be tried; one that is known or under way gets the same answer."""
        module = self._same.get(program.module, program.module)
        if module in self._known:
            self.done.append(replace(self._known[module], program=program, duplicate=True))
        elif module in self._twins:
            self._twins[module].append(program)
        else:
            self._twins[module] = []
            return True
        return False

    def built(self, trial: Trial) -> None:
        """A program is ready for a device, unless another one became the same code."""
        program = trial.program
        first = self._first_with_code.setdefault((program.operator, trial.fingerprint), program)
        if first is program:
            self.waiting.append(trial)
            return
        trial.remove_files()
        self._same[program.module] = first.module
        for twin in (program, *self._twins.pop(program.module)):
            self.is_new(twin)

    def seconds_of_best(self, operator: str) -> float:
        """The median of the operator's best program; infinite if there is none."""
        best = self.best.get(operator)
        return best.median if best else math.inf

    def finish(self, trial: Trial, measurement: Measurement) -> None:
        """All there is to know about a program."""
        trial.remove_files()
        self.answer(measurement)

    def answer(self, measurement: Measurement) -> None:
        """The measurement of a program and of all that are the same."""
        module = measurement.program.module
        self._known[module] = measurement
        self.done.append(measurement)
        operator = measurement.program.operator
        if measurement.median < self.seconds_of_best(operator):
            self.best[operator] = measurement
        twins = self._twins.pop(module, [])
        self.done.extend(replace(measurement, program=twin, duplicate=True) for twin in twins)


def conclude(attempts: list[Attempt], limit: int) -> Failure | None:
    """Why a program fails for good after these attempts, or None if it deserves another.

    A server that dies and a program that kills its server look the same from here, as do a server that stands
    still and a program that never ends. What happens to one program twice is the program's doing.
    """
    story = "; ".join(str(attempt) for attempt in attempts)
    said = "\n".join(attempt.message for attempt in attempts if attempt.message)
    for mishap, kind, meaning in (
        (Mishap.BROKE, FailureKind.CRASH, "it crashes"),
        (Mishap.TOO_LONG, FailureKind.RUN_TIMEOUT, "it takes too long"),
    ):
        if sum(attempt.mishap is mishap for attempt in attempts) >= _TO_BE_SURE:
            return Failure(kind, f"{meaning}: {story}", said)
    if len(attempts) >= limit:
        return Failure(FailureKind.DEVICE_LOST, f"given up after {len(attempts)} attempts: {story}", said)
    return None
