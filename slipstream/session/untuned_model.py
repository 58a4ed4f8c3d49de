"""Whether a tuned model is faster than with default programs alone: both are called in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.statistics import Interval, median, median_interval

# Nothing is compared where the operators alone say that tuning has made them so many times as fast, nor in a session
# too short to compile the model twice.
_CLEAR_GAIN = 1.25
_LEAST_SECONDS = 60.0
# Nor where calls are so long that they would take more than this share of it.
_MOST_SHARE = 0.1
# A block is so long that the model's own data is in the caches for most of it, as it is when calls come back to back.
_SECONDS, _BLOCK_SECONDS, _LEAST_CALLS, _LEAST_ROUNDS = 1.5, 0.03, 3, 6
# Of both models; of long calls two a block.
LEAST_CALLS = 2 * 2 * _LEAST_ROUNDS


def worth_comparing(start_latency: float, latency: float, seconds: float) -> bool:
    """Whether a tuned model might be slower than an untuned one, by the sums of their operators, and the session has so
    many seconds that compiling and calling both is a small part."""
    is_long_enough = seconds >= max(_LEAST_SECONDS, LEAST_CALLS * start_latency / _MOST_SHARE)
    return start_latency < _CLEAR_GAIN * latency and is_long_enough


def times_of_untuned(tuned: Path, untuned: Path, threads: int) -> tuple[float, Interval]:
    """How many times as long a call of the `tuned` artifact takes as one of the `untuned`, all shapes together: the
    median over rounds and its interval."""
    from slipstream.artifact.loaded import example_inputs, load

    with load(tuned, threads=threads) as one, load(untuned, threads=threads) as other:
        inputs = [example_inputs(tuned, own) for own in one.manifest.single_shapes]
        calls = [[model.on_device(own) for own in inputs] for model in (one, other)]
        ratios: list[float] = []
        deadline = time.monotonic() + _SECONDS
        while len(ratios) < _LEAST_ROUNDS or time.monotonic() < deadline:
            pair = [0.0, 0.0]
            for side in (0, 1) if len(ratios) % 2 else (1, 0):
                pair[side] = _seconds(calls[side])
            ratios.append(pair[0] / pair[1])
    return median(ratios), median_interval(ratios)


def _seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Of one call of each, in a block of calls. The first finds another model's data in the caches and is left out."""
    total = 0.0
    for call in calls:
        samples: list[float] = []
        deadline, least = time.monotonic() + _BLOCK_SECONDS, 1 + _LEAST_CALLS
        while len(samples) < least or time.monotonic() < deadline:
            started = time.perf_counter()
            call()
            samples.append(time.perf_counter() - started)
            if samples[0] >= _BLOCK_SECONDS:
                least = 2
        total += median(samples[1:])
    return total
