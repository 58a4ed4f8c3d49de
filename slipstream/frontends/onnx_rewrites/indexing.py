"""Operators that move elements to computed places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite, attributes_of


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


REWRITES: dict[tuple[str, str], Rewrite] = {("", "ReverseSequence"): _reverse_sequence}
