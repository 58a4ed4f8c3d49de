"""Whether the machine was busy with something else: waiting for a core, and a reference kernel timed now and then."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from slipstream.statistics import median

# Threads that had to wait for a core for more than this share of the time were not measured alone.
MOST_WAITING = 0.05
# The reference kernel is a parallel matmul of this size, timed with (runs a sample, samples), at most so often.
PROBE_SIZE = 256
PROBE = (2, 5)
PROBE_SECONDS = 1.0


def seconds_waited() -> float:
    """Time this process's threads have spent ready to run without a core, as the kernel counts it."""
    total = 0
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError, IndexError), open(f"/proc/self/task/{thread}/schedstat") as file:
                total += int(file.read().split()[1])
    return total / 1e9


@dataclass
class Drift:
    """How the reference kernel does against its usual time in this session.

    Usual is the lower quartile of the recent timings: disturbances only ever make it slower, while a machine that
    warmed up and clocks down for good becomes the new normal.
    """

    tolerance: float = 0.1
    memory: int = 64
    _medians: deque[float] = field(default_factory=deque)

    def add(self, samples: list[float]) -> float:
        """Note a timing of the kernel; returns how much slower than usual it was (0.1: 10 %)."""
        self._medians.append(median(samples))
        if len(self._medians) > self.memory:
            self._medians.popleft()
        return self.now

    @property
    def usual(self) -> float:
        ordered = sorted(self._medians)
        return ordered[(len(ordered) - 1) // 4] if ordered else 0.0

    @property
    def now(self) -> float:
        return self._medians[-1] / self.usual - 1 if self._medians else 0.0

    @property
    def worst(self) -> float:
        return max(self._medians) / self.usual - 1 if self._medians else 0.0

    @property
    def is_busy(self) -> bool:
        return self.now > self.tolerance
