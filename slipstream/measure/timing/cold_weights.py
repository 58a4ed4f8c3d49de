"""Weights as a running model finds them: last read a whole model ago.

Between two runs of an operator a model reads the weights of all the others, so its own have left the cores' caches.
Timed again and again on one copy of them, a program looks faster than it is in the model, by a third where they take
9 MB; and the program that is best with warm weights need not be the best with cold ones. So large weights are there
several times, and every run takes the next copy. Activations stay where they are: in a model they come warm from the
operator before.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.measure.arena import Array, aligned

# Smaller weights are read from the caches behind the cores' own in no time. More bytes than these changed nothing.
_LEAST_BYTES = 256 << 10
_BYTES_BETWEEN_RUNS = 32 << 20


def with_copies(arrays: Sequence[Array], weights: Sequence[int]) -> list[list[Array]]:
    """The arguments, and the same with other copies of the arguments at `weights`, for as many runs as it takes."""
    size = sum(arrays[index].nbytes for index in weights)
    if not _LEAST_BYTES <= size < _BYTES_BETWEEN_RUNS:  # weights larger than that push themselves out
        return [list(arrays)]
    copies = -(-_BYTES_BETWEEN_RUNS // size)
    return [list(arrays), *(_with_copy(arrays, weights) for _ in range(copies))]


def _with_copy(arrays: Sequence[Array], weights: Sequence[int]) -> list[Array]:
    copied = list(arrays)
    for index in weights:
        copied[index] = aligned(arrays[index].shape, arrays[index].dtype)
        copied[index][...] = arrays[index]
    return copied
