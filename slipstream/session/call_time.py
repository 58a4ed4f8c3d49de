"""How long a call of a model takes, for the figures at the end of a session."""

from __future__ import annotations

import time
from collections.abc import Callable

from slipstream.statistics import median

_SECONDS, _MOST_CALLS = 0.7, 500


def seconds_of_call(call: Callable[[], object]) -> float:
    """The median over most of a second, or over 500 calls, without the first; one more call if that took longer."""
    samples: list[float] = []
    deadline = time.monotonic() + _SECONDS
    while len(samples) < 2 or (time.monotonic() < deadline and len(samples) < _MOST_CALLS):
        started = time.perf_counter()
        call()
        samples.append(time.perf_counter() - started)
    return median(samples[1:])
