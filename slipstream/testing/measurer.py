"""A measurer that only pretends, on a clock that only pretends: sessions in seconds, for tests and benchmarks."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement

TRIAL_SECONDS = 0.25

Seconds = Callable[[Candidate], float | FailureKind]


class SimulatedClock:
    """Seconds that pass only when `advance` is called."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds since the clock's own beginning."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; time never goes back."""
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ValueError(f"a clock advances by a finite number of seconds from 0 up, not {seconds}")
        self._now += seconds


def hashed(candidate: Candidate, seed: int = 0) -> float | FailureKind:
    """0.1 to 10.1 ms by a hash of the program's text; one program in ten fails."""
    digest = hashlib.blake2b(f"{seed}:{candidate.operator}:{candidate.module}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big") / 2**64
    return FailureKind.RUN_ERROR if number < 0.1 else 1e-4 + 1e-2 * number


class SyntheticMeasurer:
    """SIMULATES: nothing is built or run. A program's seconds are what `seconds` makes of it, by default a hash.

    A trial takes a quarter of a second of the simulated `clock` and `pause` real ones. `log` gets a line for every
    program that was measured, so that those of a process that is killed can be counted.
    """

    def __init__(self, seconds: Seconds = hashed, *, pause: float = 0.0, log: Any = None) -> None:
        self._seconds, self._pause, self._log = seconds, pause, log
        self.clock = SimulatedClock()
        self.measured: list[Candidate] = []

    def measure(self, programs: Iterable[Candidate]) -> Iterator[Measurement]:
        for program in programs:
            started = self.clock.now()
            self.clock.advance(TRIAL_SECONDS)
            time.sleep(self._pause)
            self.measured.append(program)
            if self._log:
                with Path(self._log).open("a") as file:
                    file.write(f"{program.label}\n")
            yield self._answer(program, started)

    def _answer(self, program: Candidate, started: float) -> Measurement:
        seconds = self._seconds(program)
        failure = Failure(seconds, "simulated") if isinstance(seconds, FailureKind) else None
        samples = () if isinstance(seconds, FailureKind) else (seconds,) * 3
        return Measurement(
            program,
            samples,
            failure,
            verified=failure is None,
            build_seconds=0.2,
            run_seconds=0.05,
            started_at=started,
        )

    def close(self) -> None:
        """Nothing to release."""
