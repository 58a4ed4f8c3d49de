"""Functions that only move elements, as transposing and packing of weights do: copies between two strided views.

Most of what is folded is of this kind, and compiling such a function takes far longer than NumPy's copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from tvm import s_tir, tirx

from slipstream.graph.describe.blocks import TensorLoad
from slipstream.graph.schedule_blocks import DATA_PARALLEL

Array = np.ndarray[Any, Any]
# Types of which NumPy can look at TVM's tensors.
_COMMON = {"bool", "float16", "float32", "float64"} | {f"{sign}int{8 << n}" for sign in ("", "u") for n in range(4)}
_LARGE = 1 << 18  # elements that a cache does not hold
_STRIP = 128
# How far the place of an element in memory moves with each counter: an array over the counter's values.
Steps = dict[Any, Array]


@dataclass(frozen=True)
class Move:
    """Elements of one argument go to another, both by position. Each side is a box of as many axes: where it begins,
    and how many elements apart neighbours along an axis are."""

    source: int
    target: int
    extents: tuple[int, ...]
    starts: tuple[int, int]
    strides: tuple[tuple[int, ...], tuple[int, ...]]

    def apply(self, arrays: Sequence[Array]) -> None:
        """Move the elements between these arguments, each contiguous."""
        views = []
        for place, start, strides in zip((self.source, self.target), self.starts, self.strides, strict=True):
            flat = arrays[place].reshape(-1)[start:]
            views.append(as_strided(flat, self.extents, [stride * flat.itemsize for stride in strides]))
        for part in self._parts():
            views[1][part] = views[0][part]

    def _parts(self) -> Iterator[tuple[slice, ...]]:
        """What to copy at a time. NumPy writes elements in their order: of a large transposition, each one read would
        fetch a line of the cache that is gone before its next element is due, so a strip is written at a time."""
        whole = tuple(slice(0, extent) for extent in self.extents)
        neighbours = [axis for axis, stride in enumerate(self.strides[1]) if stride == 1]
        written = max(neighbours, key=lambda axis: self.extents[axis], default=None)
        if written is None or self.strides[0][written] < _STRIP or math.prod(self.extents) < _LARGE:
            yield whole
            return
        for begin in range(0, self.extents[written], _STRIP):
            yield (*whole[:written], slice(begin, begin + _STRIP), *whole[written + 1 :])


def apply_moves(moves: Sequence[Move], *tensors: Any) -> None:
    """What the compiled function does with its arguments, tensors of TVM."""
    arrays = [np.from_dlpack(tensor) for tensor in tensors]
    for move in moves:
        move.apply(arrays)


def moves_of(func: tirx.PrimFunc) -> list[Move] | None:
    """What `func` moves, in order; None if it does anything else, or in a way that is not recognised."""
    root = func.body.block if isinstance(func.body, s_tir.SBlockRealize) else None
    if root is None or root.alloc_buffers or root.iter_vars:
        return None
    places = {parameter: n for n, parameter in enumerate(func.params)}
    statements = root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]
    moves = [_move(statement, places) for statement in statements]
    return None if None in moves else [move for move in moves if move is not None]


def _move(statement: Any, places: Mapping[Any, int]) -> Move | None:
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    if not isinstance(statement, s_tir.SBlockRealize):
        return None
    block, store = statement.block, statement.block.body
    plain = (
        isinstance(store, tirx.BufferStore)
        and isinstance(store.value, TensorLoad)
        and block.init is None
        and not block.alloc_buffers
        and not block.match_buffers
        and isinstance(statement.predicate, tirx.IntImm)
        and int(statement.predicate.value) == 1
        and len(loops) == len(block.iter_vars)
        and all(value.same_as(loop.loop_var) for value, loop in zip(statement.iter_values, loops, strict=True))
        and all(int(axis.iter_type) == DATA_PARALLEL and int(axis.dom.extent) > 0 for axis in block.iter_vars)
    )
    if not plain:
        return None
    load, target, source = store.value, store.buffer, store.value.source
    counters = {axis.var: int(axis.dom.extent) for axis in block.iter_vars}
    sides = [_steps(b, indices, counters) for b, indices in ((source, load.indices), (target, store.indices))]
    if source not in places or target not in places or None in sides:
        return None
    if source.dtype != target.dtype or str(source.dtype) not in _COMMON:
        return None
    box: list[tuple[int, int, int]] = []
    for counter, extent in counters.items():
        digits = _digits(*(side[1].get(counter, np.zeros(extent, np.int64)) for side in sides if side))
        if digits is None:
            return None
        box += reversed(digits)
    extents, read, written = zip(*box, strict=True) if box else ((), (), ())
    starts = tuple(side[0] for side in sides if side)
    return Move(places[source], places[target], extents, (starts[0], starts[1]), (read, written))


def _steps(buffer: Any, indices: Sequence[Any], counters: Mapping[Any, int]) -> tuple[int, Steps] | None:
    """Where the first element is and how far each counter moves from it; None if counters do not act separately."""
    if buffer.strides or not isinstance(buffer.elem_offset, tirx.IntImm) or int(buffer.elem_offset) != 0:
        return None
    shape = [int(extent) for extent in buffer.shape]
    start, total = 0, Steps()
    for axis, index in enumerate(indices):
        if (found := _separate(index, counters)) is None:
            return None
        stride = math.prod(shape[axis + 1 :])
        start += stride * found[0]
        for counter, steps in found[1].items():
            total[counter] = total.get(counter, 0) + stride * steps
    return start, total


def _separate(index: Any, counters: Mapping[Any, int]) -> tuple[int, Steps] | None:
    """An index as a number and what each counter adds to it."""
    if isinstance(index, tirx.IntImm):
        return int(index.value), {}
    if isinstance(index, tirx.Var):
        known = counters.get(index)
        return None if known is None else (0, {index: np.arange(known)} if known > 1 else {})
    if not isinstance(index, (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)):
        return None
    a, b = _separate(index.a, counters), _separate(index.b, counters)
    if a is None or b is None:
        return None
    (first, steps), (second, others) = a, b
    if isinstance(index, (tirx.Add, tirx.Sub)):
        sign = 1 if isinstance(index, tirx.Add) else -1
        both = {c: np.asarray(steps.get(c, 0) + sign * others.get(c, 0)) for c in {**steps, **others}}
        return first + sign * second, both
    if isinstance(index, tirx.Mul):
        if steps and others:
            return None
        moving, factor = (steps, second) if steps else (others, first)
        return first * second, {c: values * factor for c, values in moving.items()}
    if others or len(steps) > 1 or second <= 0:
        return None
    apply = np.floor_divide if isinstance(index, tirx.FloorDiv) else np.mod
    begin = int(apply(first, second))
    return begin, {c: apply(first + values, second) - begin for c, values in steps.items()}


def _digits(read: Array, written: Array) -> list[tuple[int, int, int]] | None:
    """The counter of two functions as a number of digits, the lowest first, in each of which both are linear:
    (how many values the digit has, what one step of it adds to either function); None if there are no such digits."""
    digits = []
    while (extent := len(read)) > 1:
        steps = int(read[1] - read[0]), int(written[1] - written[0])
        sizes = [size for size in range(extent, 1, -1) if extent % size == 0]
        size = next((n for n in sizes if _repeats(read, steps[0], n) and _repeats(written, steps[1], n)), None)
        if size is None:
            return None
        digits.append((size, *steps))
        read, written = read[::size], written[::size]
    return digits


def _repeats(values: Array, step: int, size: int) -> bool:
    rows = values.reshape(-1, size)
    return bool((rows - rows[:, :1] == step * np.arange(size)).all())
