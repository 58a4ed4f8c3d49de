"""Whether the machine was busy with something else: waiting for a core, and a reference kernel timed now and then."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from slipstream.measure.config import Racing
from slipstream.measure.timing.racing import runs_per_sample
from slipstream.statistics import median

# If a thread had to wait for a core for more than this share of the time, the program was not measured alone.
MOST_WAITING = 0.05
# The reference kernel is a parallel matmul of this size, timed at most so often.
PROBE_SIZE = 256
PROBE_SECONDS = 1.0
_PROBE_SAMPLES = 5
# With many threads a run of the kernel takes little more than starting them.
_PROBE_RACING = Racing(sample_seconds=5e-4)

Waits = dict[str, float]


def waits() -> Waits:
    """Seconds that each thread of this process has spent ready to run without a core, as the kernel counts it."""
    found: Waits = {}
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError, IndexError), open(f"/proc/self/task/{thread}/schedstat") as file:
                found[thread] = int(file.read().split()[1]) / 1e9
    return found


def longest_wait(before: Waits, after: Waits) -> float:
    """Seconds that the thread that waited longest has spent so in between."""
    return max((seconds - before.get(thread, 0.0) for thread, seconds in after.items()), default=0.0)


def sample_probe(sample: Callable[[int, int], Sequence[float]]) -> list[float]:
    """Seconds of a run of the reference kernel, several times; `sample` is given runs a sample and samples."""
    (once,) = sample(2, 1)
    return list(sample(max(2, runs_per_sample(once, _PROBE_RACING)), _PROBE_SAMPLES))


@dataclass
class Drift:
    """How the reference kernel does against its usual time in this session.

    Usual is the lower quartile of the recent timings: disturbances only ever make it slower, while a machine that
    warmed up and clocks down for good becomes the new normal.
    """

    tolerance: float = 0.1
    memory: int = 64
    _medians: deque[float] = field(default_factory=deque)

    def add(self, samples: Sequence[float]) -> float:
        """Note a timing of the kernel; returns how much slower than usual it was (0.1: 10 %)."""
        self._medians.append(median(samples))
        if len(self._medians) > self.memory:
            self._medians.popleft()
        return self.now

    def would_be_busy(self, samples: Sequence[float]) -> bool:
        """Whether the machine would count as busy if this were the kernel's timing."""
        return bool(self._medians) and median(samples) > (1 + self.tolerance) * self.usual

    @property
    def usual(self) -> float:
        ordered = sorted(self._medians)
        return ordered[(len(ordered) - 1) // 4] if ordered else 0.0

    @property
    def now(self) -> float:
        return self._medians[-1] / self.usual - 1 if self._medians else 0.0

    @property
    def is_busy(self) -> bool:
        return self.now > self.tolerance
