"""What goes into a measurer and what comes out of it. Plain data: no TVM in here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

from slipstream import statistics
from slipstream.statistics import Interval


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
class Candidate:
    """One scheduled form of an operator: `operator` is its key, `module` the scheduled TIR as TVM's JSON.

    The module's entry function is `main`. Two programs with the same `module` are the same program.
    """

    operator: str
    module: str
    label: str = ""

    @cached_property
    def digest(self) -> str:
        """Equal for equal programs."""
        return hashlib.sha256(f"{self.operator}\0{self.module}".encode()).hexdigest()


@dataclass(frozen=True)
class Measurement:
    """What was learned about one program. `samples` are seconds per run, in the order taken.

    The seconds of its trial: `build_seconds` of a core from TIR to code in memory, `load_seconds` of them LLVM
    emitting and linking that code, `allocate_seconds` for its arguments, `run_seconds` running it (warm-up, check
    and samples), `overhead_seconds` everything else that kept the machine from the next trial. `noisy` says that the
    machine was busy with something else meanwhile, `duplicate` that the figures are those of an equal program.
    """

    program: Candidate
    samples: tuple[float, ...] = ()
    failure: Failure | None = None
    stopped_early: bool = False
    noisy: bool = False
    verified: bool = False
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    started_at: float = 0.0
    load_seconds: float = 0.0
    allocate_seconds: float = 0.0
    overhead_seconds: float = 0.0
    duplicate: bool = False

    @property
    def median(self) -> float:
        """Seconds of a run; infinite for a failure, so that it never looks best."""
        if self.failure is not None or not self.samples:
            return math.inf
        return statistics.median(self.samples)

    @property
    def interval(self) -> Interval:
        """Where the median lies with 95 % confidence; infinite for a failure."""
        if self.failure is not None or not self.samples:
            return Interval(math.inf, math.inf)
        return statistics.median_interval(self.samples)


@dataclass(frozen=True)
class Settled:
    """The winner among finalists. `decided`: fastest at `confidence`, or slower by less than matters."""

    winner: Measurement
    decided: bool
    confidence: float
    finalists: tuple[Measurement, ...]


class Measurer(Protocol):
    """Measures programs. Results stream in the order they become known, one for every program.

    Where a session has several slots in flight its programs may include None: nothing yet, ask again.
    """

    def measure(self, programs: Iterable[Any]) -> Iterator[Measurement]: ...

    def close(self) -> None: ...
