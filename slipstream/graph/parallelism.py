"""How many threads an operator is worth: one that is done in microseconds stays on the calling thread."""

from __future__ import annotations

from collections.abc import Iterable

# What a thread needs to do for its start and its end to be worth it. Handing a task to a thread that waits for it and
# collecting the result takes some hundred nanoseconds on two cores and about a microsecond on sixteen.
_LEAST_SECONDS = 2e-6
# What one core does at least, for a bound from above on the time: a third of two fused multiply-adds a cycle at 2.5
# GHz, and memory of the last cache.
_FLOPS_PER_LANE = 0.35 * 2 * 2 * 2.5e9
_BYTES_PER_SECOND = 8e9


def threads_worth(flops: int, nbytes: Iterable[int], lanes: int) -> int:
    """At most how many threads for an operator with so many FLOPs on arguments of `nbytes`; `lanes` in a vector."""
    seconds = max(flops / (_FLOPS_PER_LANE * lanes), sum(nbytes) / _BYTES_PER_SECOND)
    return 1 + int(seconds / _LEAST_SECONDS)
