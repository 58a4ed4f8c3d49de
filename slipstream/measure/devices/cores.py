"""Which cores of this machine time programs, and on which others are built meanwhile.

A program is timed on as many physical cores as the target has threads, with nothing else on them. Builders and the
search use all cores while nothing is timed; while something is, those cores alone that are `beside` it. Where the
target has as many threads as there are cores, nothing is beside: building stops for each batch of runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.machine.target import available_cores

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True)
class Cores:
    """The cores that programs are timed on, and those that remain for everything else meanwhile."""

    timing: frozenset[int]
    beside: frozenset[int] = frozenset()

    @property
    def all(self) -> frozenset[int]:
        return self.timing | self.beside


def siblings_of(core: int) -> frozenset[int]:
    """The logical cores of the same physical core; itself alone where the kernel does not say."""
    found = {core}
    with suppress(OSError, ValueError):
        for part in Path(_SIBLINGS.format(core)).read_text().strip().split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def divide(threads: int, allowed: Collection[int], siblings: Callable[[int], frozenset[int]] = siblings_of) -> Cores:
    """The last `threads` physical cores time, since interrupts are mostly served by the first; the rest is beside."""
    physical = sorted({frozenset(siblings(core) & frozenset(allowed)) for core in allowed}, key=min)
    timing = frozenset[int]().union(*physical[-threads:])
    return Cores(timing, frozenset(allowed) - timing)


def divide_this_machine(threads: int) -> Cores:
    """The cores this process may use. Where a container limits processor time instead of cores, nothing is beside:
    what is built while a program runs would be taken from its time."""
    allowed = frozenset(os.sched_getaffinity(0))
    return divide(threads, allowed) if available_cores() == len(allowed) else Cores(allowed)


def place(process: int, cores: Collection[int]) -> None:
    """Confine all threads of a process to `cores`, unless it has ended or they are no longer allowed."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                os.sched_setaffinity(int(thread), cores)
