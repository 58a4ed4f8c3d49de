"""A process in which callers of a model come and go for a while; memory, threads and results are watched.

Started by `benchmarks.serving` with a JSON job; prints what it saw as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import slipstream
from slipstream.frontends.inputs import random_inputs
from slipstream.processes.child import die_with_parent

_INPUTS = 4
_SAMPLES = 60
_TOLERANCE = 1e-4  # of the largest value of an output
_PAUSES = (0.0, 0.0, 0.001, 0.02)
_MOST_CALLS = 40
_SECONDS_TO_END = 2.0


class Callers:
    """Threads that call a model a few times and end; every result is compared with the first one for its inputs."""

    def __init__(self, model: slipstream.CompiledModel, seed: int) -> None:
        self.model = model
        rng = np.random.default_rng(seed)
        self.inputs = [random_inputs(model.inputs, rng) for _ in range(_INPUTS)]
        self.expected = [list(model(feeds)) for feeds in self.inputs]
        self.requests = self.wrong = 0
        self.failures: list[str] = []
        self.threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self, calls: int, pause: float) -> None:
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        thread = threading.Thread(target=self._call, args=(calls, pause))
        thread.start()
        self.threads.append(thread)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()

    def _call(self, calls: int, pause: float) -> None:
        for number in range(calls):
            which = number % _INPUTS
            try:
                outputs = self.model(self.inputs[which])
            except Exception as error:
                with self._lock:
                    self.failures.append(str(error))
                return
            same = all(map(_same, outputs, self.expected[which]))
            with self._lock:
                self.requests += 1
                self.wrong += not same
            if pause:
                time.sleep(pause)


def _same(output: Any, expected: Any) -> bool:
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    return bool(np.allclose(output, expected, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True))


def soak(directory: str | Path, *, seconds: float, callers: int, loads: int, seed: int) -> dict[str, Any]:
    before = _threads()
    draw = random.Random(seed)
    model = slipstream.load(directory)
    people = Callers(model, seed)
    samples: list[dict[str, float]] = []
    began, processor = time.monotonic(), time.process_time()
    while (elapsed := time.monotonic() - began) < seconds:
        alive = sum(thread.is_alive() for thread in people.threads)
        if alive < draw.randint(0, callers):
            people.start(draw.randint(1, _MOST_CALLS), draw.choice(_PAUSES))
        if elapsed >= len(samples) * seconds / _SAMPLES:
            samples.append({"seconds": round(elapsed, 1), "callers": alive, **_memory_and_threads()})
        time.sleep(0.01)
    people.join()
    processor = time.process_time() - processor
    samples.append({"seconds": round(time.monotonic() - began, 1), "callers": 0, **_memory_and_threads()})
    model.close()
    return {
        "seconds": seconds,
        "requests": people.requests,
        "wrong": people.wrong,
        "failures": people.failures[:10],
        "processor_seconds": processor,
        "samples": samples,
        "threads_left": _threads_left(before),
        "loads": _load_and_unload(directory, loads, before),
    }


def _load_and_unload(directory: str | Path, count: int, threads_before: int) -> dict[str, Any]:
    """Memory after half of the loads and after all of them; each model is called once.

    The C library keeps freed memory for later: in the first dozens of loads memory grows up to some level.
    """
    began, first = time.monotonic(), 0
    for number in range(count):
        with slipstream.load(directory) as model:
            model(random_inputs(model.inputs, np.random.default_rng(0)))
        if number == count // 2:
            first = _memory_and_threads()["memory_bytes"]
    last = _memory_and_threads()["memory_bytes"]
    return {
        "count": count,
        "seconds": time.monotonic() - began,
        "memory_bytes": [first, last],
        "threads_left": _threads_left(threads_before),
    }


def _threads_left(before: int) -> int:
    """Threads beyond `before`, once those that are ending had time to."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while _threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return _threads() - before


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _memory_and_threads() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"memory_bytes": pages * os.sysconf("SC_PAGE_SIZE"), "threads": _threads()}


def main() -> None:
    die_with_parent(os.getppid())
    job: Mapping[str, Any] = json.loads(sys.argv[1])
    print(json.dumps(soak(**job)))


if __name__ == "__main__":
    main()
