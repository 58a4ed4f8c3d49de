"""What goes into a measurer and what comes out of it. Plain data: no TVM in here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class FailureKind(StrEnum):
    """Why a program has no time."""

    BUILD_ERROR = "build error"
    BUILD_TIMEOUT = "build timeout"
    RUN_ERROR = "run error"
    RUN_TIMEOUT = "run timeout"
    CRASH = "crash"
    OUT_OF_MEMORY = "out of memory"
    WRONG_RESULT = "wrong result"
    DEVICE_LOST = "device lost"


@dataclass(frozen=True)
class Failure:
    """The kind, one line about it, and the last lines the worker printed."""

    kind: FailureKind
    message: str
    stderr: str = ""


@dataclass(frozen=True)
class Program:
    """One scheduled form of an operator: `operator` is its key, `module` the scheduled TIR as TVM's JSON.

    The module's entry function is `main`. Two programs with the same `module` are the same program.
    """

    operator: str
    module: str
    label: str = ""


@dataclass(frozen=True)
class Measurement:
    """What was learned about one program. `samples` are seconds per run, in the order taken."""

    program: Program
    samples: tuple[float, ...] = ()
    failure: Failure | None = None
    stopped_early: bool = False
    noisy: bool = False
    verified: bool = False
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    started_at: float = 0.0

    @property
    def median(self) -> float:
        """Seconds of a run; infinite for a failure, so that it never looks best."""
        if self.failure is not None or not self.samples:
            return math.inf
        ordered = sorted(self.samples)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Measurer(Protocol):
    """Measures programs. Results stream in the order they become known, one for every program."""

    def measure(self, programs: Iterable[Program]) -> Iterator[Measurement]: ...

    def close(self) -> None: ...
