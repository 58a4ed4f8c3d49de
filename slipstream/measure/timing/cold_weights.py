"""Weights as a running model finds them: outside of the cores' caches.

Between two runs of an operator a model reads the weights of all the others, so its own have left the cores' caches.
Timed again and again on one copy of them, a program is faster than in the model, by a third where they take 9 MB; and
the program that is best with cached weights need not be the best in the model. So there are several copies of large
weights, and every run takes the next one. Activations are not copied: in a model they come from the operator before
and are still cached.

How many copies depends on what the model reads of weights in a call. A cache that all cores share may keep tens of
megabytes of them; what a machine says of its size does not tell, since others may share it. With too few copies,
Winograd's forms of ResNet-18's last convolutions, whose weights are two and four times as large, took half to two
thirds of what they take in the model and were preferred to programs that are faster there.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.measure.arena import Array, aligned

_LEAST_BYTES = 256 << 10  # smaller weights are read from the next cache in no time
_LEAST_BETWEEN, _MOST_BETWEEN = 32 << 20, 128 << 20  # bytes read between two runs; more than the most changed nothing


def copies_needed(weight_bytes: int, model_weights: int) -> int:
    """How many copies of an operator's weights are needed besides the weights themselves, in a model that reads
    `model_weights` bytes of weights in a call, 0 if that is not known."""
    if not _LEAST_BYTES <= weight_bytes < _MOST_BETWEEN:  # weights larger than that evict themselves
        return 0
    return -(-min(max(model_weights, _LEAST_BETWEEN), _MOST_BETWEEN) // weight_bytes)


def with_copies(arrays: Sequence[Array], weights: Sequence[int], model_weights: int) -> list[list[Array]]:
    """The arguments, and the same with other copies of the arguments at `weights`, as many as needed."""
    copies = copies_needed(sum(arrays[index].nbytes for index in weights), model_weights)
    return [list(arrays), *(_with_copy(arrays, weights) for _ in range(copies))]


def _with_copy(arrays: Sequence[Array], weights: Sequence[int]) -> list[Array]:
    copied = list(arrays)
    for index in weights:
        copied[index] = aligned(arrays[index].shape, arrays[index].dtype)
        copied[index][...] = arrays[index]
    return copied
