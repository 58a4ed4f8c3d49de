"""Operators that move, cut, join and look up elements without computing with them."""

from __future__ import annotations

import math
import operator

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from slipstream.frontends.onnx_as_torch.op import Op, Value, meta, rank, shape, tensor_of


def constant(op: Op) -> Value:
    if (value := op.attr("value")) is not None:
        return tensor_of(onnx.numpy_helper.to_array(value))
    for name, dtype in (("value_float", torch.float32), ("value_int", torch.int64)):
        for plural in ("", "s"):
            if (value := op.attr(name + plural)) is not None:
                return torch.tensor(value, dtype=dtype)
    raise op.unsupported("only numeric dense constants are translated")


def constant_of_shape(op: Op) -> Value:
    value = op.attr("value")
    fill = torch.zeros(1) if value is None else tensor_of(onnx.numpy_helper.to_array(value))
    return torch.full(op.ints("shape", 0) or [], fill.item(), dtype=fill.dtype)


def shape_of(op: Op) -> Value:
    return torch.tensor(shape(op[0])[op.attr("start", 0) : op.attr("end")], dtype=torch.int64)


def identity(op: Op) -> Value:
    return op[0]


def dropout(op: Op) -> list[Value]:
    if op.number("training_mode", 2, False):
        raise op.unsupported("training mode is not translated")
    if op.is_used(1):
        return [op[0], torch.ones(shape(op[0]), dtype=torch.bool)]
    return [op[0]]


def concat(op: Op) -> Value:
    return op.emit(torch.cat, op.inputs, op.axis(0))


def split(op: Op) -> list[Value]:
    axis, count = op.axis(0), len(op.outputs)
    length = shape(op[0])[axis]
    sizes = op.ints("split", 1)
    if sizes is None:
        chunk = math.ceil(length / count)
        sizes = [chunk] * (count - 1) + [length - chunk * (count - 1)]
    parts = op.emit(torch.split, op[0], sizes, axis)
    return [op.emit(operator.getitem, parts, index) for index in range(count)]


def reshape(op: Op) -> Value:
    old, new = shape(op[0]), op.ints("shape", 1) or []
    if not op.attr("allowzero", 0):
        new = [length or old[index] for index, length in enumerate(new)]
    return op.emit(torch.reshape, op[0], new)


def flatten(op: Op) -> Value:
    size, axis = shape(op[0]), op.attr("axis", 1)
    return op.emit(torch.reshape, op[0], [math.prod(size[:axis]), math.prod(size[axis:])])


# The heads of an attention's keys, and their transposition for the product, in one step.
_KEYS = [0, 2, 3, 1]


def transpose(op: Op) -> Value:
    order = list(op.attr("perm", list(reversed(range(rank(op[0]))))))
    if order == _KEYS:
        # As models of PyTorch write it: torch.compile takes the one step for the second one alone, and fails.
        return op.emit(torch.transpose, op.emit(torch.transpose, op[0], 1, 2), -2, -1)
    return op.emit(torch.permute, op[0], order)


def squeeze(op: Op) -> Value:
    axes = op.ints("axes", 1)
    return op.emit(torch.squeeze, op[0]) if axes is None else op.emit(torch.squeeze, op[0], tuple(axes))


def unsqueeze(op: Op) -> Value:
    x, axes = op[0], op.ints("axes", 1) or []
    for axis in sorted(axis % (rank(op[0]) + len(axes)) for axis in axes):
        x = op.emit(torch.unsqueeze, x, axis)
    return x


def expand(op: Op) -> Value:
    return op.emit(torch.broadcast_to, op[0], np.broadcast_shapes(shape(op[0]), tuple(op.ints("shape", 1) or [])))


def tile(op: Op) -> Value:
    return op.emit(torch.tile, op[0], op.ints("repeats", 1))


def slice_(op: Op) -> Value:
    x, starts, ends = op[0], op.ints("starts", 1) or [], op.ints("ends", 2) or []
    axes = op.ints("axes", 3) or list(range(len(starts)))
    steps = op.ints("steps", 4) or [1] * len(starts)
    if min(steps, default=1) < 1:
        raise op.unsupported("torch has no negative steps")
    index = [slice(None)] * rank(x)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        first, stop, _ = slice(start, end).indices(shape(x)[axis])
        index[axis] = slice(first, max(first, stop), step)
    return op.emit(operator.getitem, x, tuple(index))


def gather(op: Op) -> Value:
    x, index, axis = op[0], op[1], op.axis(0)
    if isinstance(index, torch.Tensor):
        index = index.long() % shape(x)[axis]
        if rank(index) == 0:
            return op.emit(torch.select, x, axis, int(index))
        if rank(index) == 1:
            return op.emit(torch.index_select, x, axis, index)
    # Indexing, unlike F.embedding and index_select, counts negative indices from the end as ONNX does.
    return op.emit(operator.getitem, x, (*[slice(None)] * axis, _as_index(op, index)))


def _as_index(op: Op, value: Value) -> Value:
    return value if meta(value).dtype == torch.int64 else op.emit(torch.Tensor.to, value, torch.int64)


def pad(op: Op) -> Value:
    n, mode = rank(op[0]), op.attr("mode", "constant")
    pads = op.ints("pads", 1) or []
    axes = op.ints("axes", 3) or list(range(n))
    begin, end = [0] * n, [0] * n
    for place, axis in enumerate(axes):
        begin[axis], end[axis] = pads[place], pads[place + len(axes)]
    sides = [side for pair in zip(reversed(begin), reversed(end), strict=True) for side in pair]
    if mode == "constant":
        return op.emit(F.pad, op[0], sides, value=op.number("value", 2, 0))
    if min(pads) < 0 or not 3 <= n <= 5 or any(sides[-4:]):
        raise op.unsupported(f"torch pads in mode {mode} only the spatial axes of an image, outwards")
    return op.emit(F.pad, op[0], sides[:-4], mode={"edge": "replicate", "wrap": "circular"}.get(mode, mode))
