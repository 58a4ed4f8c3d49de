"""Several runs at a time on one machine, each on cores of its own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

from slipstream.errors import SlipstreamError

Item = TypeVar("Item")
Found = TypeVar("Found")


def lanes_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lanes", type=int, default=1, help="runs at a time, each on an equal share of the cores")


def shares(count: int) -> list[list[int]]:
    """The cores of this process in equal shares."""
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(cores):
        raise SlipstreamError(f"--lanes {count} does not fit: there are {len(cores)} cores, so give 1 to {len(cores)}")
    size = len(cores) // count
    return [cores[lane * size : (lane + 1) * size] for lane in range(count)]


def in_lanes(count: int, work: Callable[[Item, Sequence[int]], Found], items: Sequence[Item]) -> Iterator[Found]:
    """`work(item, cores)` for every item, `count` at a time, started in their order; results in that order."""
    free: SimpleQueue[Sequence[int]] = SimpleQueue()
    for cores in shares(count):
        free.put(cores)

    def in_a_lane(item: Item) -> Found:
        cores = free.get()
        try:
            return work(item, cores)
        finally:
            free.put(cores)

    with ThreadPoolExecutor(count) as pool:
        yield from pool.map(in_a_lane, items)


def pinned(cores: Sequence[int]) -> list[str]:
    """What to put before a command, so that it runs on these cores; nothing without cores."""
    return ["taskset", "-c", ",".join(map(str, cores))] if cores else []


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """With this process and those it starts on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
