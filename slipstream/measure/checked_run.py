"""The part of a run that is the same on every device: run once, compare with the reference, then race."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipstream.measure.config import Racing
from slipstream.measure.timing.noise import Waits, longest_wait
from slipstream.measure.timing.sampling import Sample, race
from slipstream.measure.types import FailureKind

Answer = dict[str, Any]


@dataclass(frozen=True)
class Checked:
    """A loaded program. `first` runs it once and returns the seconds; `find_fault` says what is wrong with the result.

    `run` runs it again, `sample` times it; both by `clock`. `waits` says how long each of its threads has had to
    wait for a core so far.
    """

    first: Callable[[], float]
    find_fault: Callable[[], str]
    run: Callable[[], object]
    sample: Sample
    clock: Callable[[], float] = time.perf_counter
    waits: Callable[[], Waits] = dict

    def race(self, best: float | None, racing: Answer) -> Answer:
        """The samples against `best`, the median of the operator's best program; or the failure."""
        began = time.perf_counter()
        first = self.first()
        if wrong := self.find_fault():
            return failure(FailureKind.WRONG_RESULT, wrong)
        before = self.waits()
        settings = Racing(**{**racing, "slack": tuple(racing["slack"])})
        samples = race(self.run, self.sample, first, float("inf") if best is None else best, settings, self.clock)
        return {
            "samples": samples.seconds,
            "stopped_early": samples.stopped_early,
            "waited_seconds": longest_wait(before, self.waits()),
            "run_seconds": time.perf_counter() - began,
        }


def failure(kind: FailureKind, message: str) -> Answer:
    """An orderly failure as a worker answers it."""
    return {"failure": kind.value, "message": message}


def failure_of(error: Exception, kind: FailureKind) -> Answer:
    """The failure that an exception stands for: `kind`, or lack of memory. TVM raises any type."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, MemoryError) or "bad_alloc" in text:
        return failure(FailureKind.OUT_OF_MEMORY, "not enough memory")
    kind = FailureKind.OUT_OF_MEMORY if "out of memory" in text else kind
    return failure(kind, text.splitlines()[-1])
