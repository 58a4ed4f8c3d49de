"""When a model is called: back to back, after pauses, at random times, by several callers; and a block of calls."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slipstream.errors import InputError

# A block whose requests arrive faster than they are served ends after this many times its length.
_MOST_LENGTHS = 2.0

_Found = tuple[list[float], float]
"""A caller's latencies, and when its last request ended."""


@dataclass(frozen=True)
class RequestPattern:
    """When a model is called. With a `rate`, requests arrive at random times and wait for one of the callers."""

    pause: float = 0.0  # seconds from the end of a caller's call to its next one
    rate: float | None = None  # requests a second (Poisson arrivals)
    callers: int = 1  # threads that call the same model

    def __post_init__(self) -> None:
        if not (math.isfinite(self.pause) and self.pause >= 0):
            raise InputError(f"a pause of {self.pause} s is impossible: give zero or more, such as 20ms")
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate > 0):
            raise InputError(f"{self.rate} requests a second are impossible: give a number above zero")
        if self.rate is not None and self.pause:
            raise InputError("a rate and a pause exclude each other: give one of them")
        if self.callers < 1:
            raise InputError(f"{self.callers} callers call nothing: give 1 or more")

    def __str__(self) -> str:
        if self.rate is not None:
            text = f"{self.rate:g} requests a second"
        else:
            text = f"after a pause of {self.pause * 1e3:g} ms" if self.pause else "back to back"
        return text if self.callers == 1 else f"{text}, {self.callers} callers"

    @property
    def block_seconds(self) -> float:
        """How long a block is if there is time: some ten requests, more where requests can queue up."""
        return max(0.1, 10 * self.pause) if self.rate is None else max(1.0, 20 / self.rate)

    @property
    def least_block_seconds(self) -> float:
        """Shorter blocks would say nothing about the pattern."""
        return max(0.05, 2 * self.pause, 3 / self.rate if self.rate else 0.0)


@dataclass(frozen=True)
class Block:
    """Requests that followed each other. Latencies count from the call or, with a rate, from the arrival."""

    latencies: list[float]
    seconds: float  # from the start of the block to the end of a caller's last request, the mean of all callers
    processor_seconds: float  # user and system time of the whole process meanwhile
    unserved: int = 0  # arrivals that were never served; their latencies are the time until the block was ended


@dataclass
class _Clock:
    """Started by the callers together, when each of them has made its first call."""

    began: float = 0.0
    processor: float = 0.0

    def start(self) -> None:
        self.began, self.processor = time.perf_counter(), time.process_time()

    def block(self, callers: Sequence[_Found], unserved: int = 0) -> Block:
        latencies = [latency for own, _ in callers for latency in own]
        seconds = sum(ended - self.began for _, ended in callers) / len(callers)
        return Block(latencies, seconds, time.process_time() - self.processor, unserved)


@dataclass
class _Arrivals:
    """Requests in the order of their arrival; every caller takes the next one."""

    times: Sequence[float]
    taken: int = 0
    unserved: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> float | None:
        with self.lock:
            if self.taken == len(self.times):
                return None
            self.taken += 1
            return self.times[self.taken - 1]


def run_block(
    run: Callable[[], Any], pattern: RequestPattern, seconds: float, seed: int = 0, pool: Executor | None = None
) -> Block:
    """Call `run` in this pattern for about `seconds`; each caller's first call is not counted.

    Several callers are threads of `pool`, which must have that many; without one they are started for this block.
    """
    clock = _Clock()
    together = threading.Barrier(pattern.callers, action=clock.start)
    arrivals = _Arrivals(_arrival_times(pattern.rate, seconds, seed)) if pattern.rate else None

    def call(number: int) -> _Found:
        try:
            run()
            together.wait()
            if arrivals is not None:
                latencies = _serve(run, arrivals, clock.began, clock.began + _MOST_LENGTHS * seconds)
                time.sleep(max(0.0, clock.began + seconds - time.perf_counter()))  # in which none happened to arrive
            else:  # callers that pause begin one after the other, so that they do not call in step
                first_pause = pattern.pause * (number + 1) / pattern.callers
                latencies = _call_in_turn(run, pattern.pause, first_pause, clock, seconds)
            return latencies, time.perf_counter()
        except BaseException:
            together.abort()
            raise

    if pattern.callers == 1:
        found = [call(0)]
    elif pool is None:
        with ThreadPoolExecutor(pattern.callers) as own:
            found = _all_callers(own, call, pattern.callers)
    else:
        found = _all_callers(pool, call, pattern.callers)
    return clock.block(found, arrivals.unserved if arrivals else 0)


def _all_callers(pool: Executor, call: Callable[[int], _Found], callers: int) -> list[_Found]:
    futures = [pool.submit(call, number) for number in range(callers)]
    failures = [error for future in futures if (error := future.exception()) is not None]
    if failures:
        # Those that wait for a caller that failed fail too, with an error of the barrier.
        raise next((error for error in failures if not isinstance(error, threading.BrokenBarrierError)), failures[0])
    return [future.result() for future in futures]


def _call_in_turn(
    run: Callable[[], Any], pause: float, first_pause: float, clock: _Clock, seconds: float
) -> list[float]:
    latencies: list[float] = []
    wait = first_pause
    while not latencies or time.perf_counter() - clock.began < seconds:
        if wait:
            time.sleep(wait)
        start = time.perf_counter()
        run()
        latencies.append(time.perf_counter() - start)
        wait = pause
    return latencies


def _serve(run: Callable[[], Any], arrivals: _Arrivals, began: float, end: float) -> list[float]:
    latencies: list[float] = []
    while (after := arrivals.take()) is not None:
        arrived = began + after
        now = time.perf_counter()
        if now >= end:
            with arrivals.lock:
                arrivals.unserved += 1
            latencies.append(now - arrived)
            continue
        if now < arrived:
            time.sleep(arrived - now)
        run()
        latencies.append(time.perf_counter() - arrived)
    return latencies


def _arrival_times(rate: float, seconds: float, seed: int) -> list[float]:
    """Seconds after the start at which requests arrive, at least one: a Poisson process."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(3 * rate * seconds) + 20))
    times = np.cumsum(gaps)
    return [float(at) for at in times[: max(1, int(np.searchsorted(times, seconds)))]]
