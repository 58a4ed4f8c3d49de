"""Operators that place elements: by computed positions, by class, or around a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite, attributes_of, inputs_of


def _reverse_sequence(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    """Element t of a sequence of length n comes from n - 1 - t where t < n, else from t."""
    attributes = attributes_of(node)
    time, batch = attributes.get("time_axis", 0), attributes.get("batch_axis", 1)
    shape = g.static_shape(node)

    def along(axis: int, name: str) -> str:
        return g.reshape(name, *(shape[axis] if a == axis else 1 for a in range(len(shape))))

    steps = along(time, g.constant(np.arange(shape[time]), np.int64))
    lengths = along(batch, g.cast(node.input[1], np.int64))
    backwards = g.op("Sub", g.op("Sub", lengths, g.constant(1, np.int64)), steps)
    places = g.op("Where", g.op("Less", steps, lengths), backwards, steps)
    return [g.op("GatherElements", node.input[0], g.op("Expand", places, g.constant(shape, np.int64)), axis=time)]


def _eye_like(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    attributes = attributes_of(node)
    kind = attributes.get("dtype")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind) if kind else g.dtype(node.input[0])
    rows, columns = g.static_shape(node)
    return [g.constant(np.eye(rows, columns, attributes.get("k", 0), dtype))]


def _one_hot(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    """A comparison with the numbers of the classes; negative ones count from the back."""
    depth = int(g.required(node, 1, "its depth").reshape(-1)[0])
    rank = len(g.static_shape(node))
    axis = attributes_of(node).get("axis", -1) % (rank + 1)
    indices = node.input[0]
    negative = g.op("Less", indices, g.scalar(0, indices))
    from_back = g.op("Add", indices, g.scalar(depth, indices))
    along = [depth if a == axis else 1 for a in range(rank + 1)]
    classes = g.constant(np.arange(depth).reshape(along), g.dtype(indices))
    indices = g.op("Where", negative, from_back, indices)
    chosen = g.op("Equal", g.unsqueeze(indices, axis), classes)
    off, on = (g.slice(node.input[2], 0, n, n + 1) for n in range(2))
    return [g.op("Where", chosen, on, off)]


def _pad(g: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Padding by a value that is computed: by zeros first, which a constant mask then replaces."""
    x, pads, value, axes = inputs_of(node, 4)
    amounts = g.value(pads) if pads else None
    constant = attributes_of(node).get("mode", "constant") == "constant"
    if not value or not constant or amounts is None or g.value(value) is not None:
        return None
    shape = g.static_shape(node)
    known = g.value(axes) if axes else np.arange(len(shape))
    if known is None or amounts.min(initial=0) < 0:
        return None
    widths = [(0, 0)] * len(shape)
    for number, axis in enumerate(known):
        widths[int(axis)] = (int(amounts[number]), int(amounts[number + len(known)]))
    inside = g.constant(np.pad(np.ones(shape, np.bool_), widths))
    return [g.op("Where", inside, g.op("Pad", x, pads, "", *([axes] if axes else [])), value)]


REWRITES: dict[tuple[str, str], Rewrite] = {
    ("", "EyeLike"): _eye_like,
    ("", "OneHot"): _one_hot,
    ("", "Pad"): _pad,
    ("", "ReverseSequence"): _reverse_sequence,
}
