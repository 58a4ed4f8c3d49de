"""Weights as a running model finds them: outside of the cores' caches.

Between two runs of an operator a model reads the weights of all the others, so its own have left the cores' caches.
Timed again and again on one copy of them, a program is faster than in the model, by a third where they take 9 MB; and
the program that is best with cached weights need not be the best in the model. So there are several copies of large
weights, and every run takes the next one. Activations are not copied: in a model they come from the operator before
and are still cached.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.measure.arena import Array, aligned

# Smaller weights are read from the next cache in no time. More bytes between two runs than these changed nothing.
_LEAST_BYTES = 256 << 10
_BYTES_BETWEEN_RUNS = 32 << 20


def copies_needed(weight_bytes: int) -> int:
    """How many copies of an operator's weights are needed besides the weights themselves."""
    if not _LEAST_BYTES <= weight_bytes < _BYTES_BETWEEN_RUNS:  # weights larger than that evict themselves
        return 0
    return -(-_BYTES_BETWEEN_RUNS // weight_bytes)


def with_copies(arrays: Sequence[Array], weights: Sequence[int]) -> list[list[Array]]:
    """The arguments, and the same with other copies of the arguments at `weights`, as many as needed."""
    copies = copies_needed(sum(arrays[index].nbytes for index in weights))
    return [list(arrays), *(_with_copy(arrays, weights) for _ in range(copies))]


def _with_copy(arrays: Sequence[Array], weights: Sequence[int]) -> list[Array]:
    copied = list(arrays)
    for index in weights:
        copied[index] = aligned(arrays[index].shape, arrays[index].dtype)
        copied[index][...] = arrays[index]
    return copied
