"""Recurrent nodes whose tensors have the batch first, which ONNX Runtime lacks."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite

_STATES = (5, 6)


def _steps_first(g: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """The node of `layout` 0 between transpositions."""
    layout = next((attribute for attribute in node.attribute if attribute.name == "layout"), None)
    if layout is None or layout.i == 0:
        return None
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.attribute.remove(next(attribute for attribute in copy.attribute if attribute.name == "layout"))
    for position in (0, *_STATES):
        if position < len(copy.input) and copy.input[position]:
            copy.input[position] = g.transpose(copy.input[position], 1, 0, 2)
    for position, output in enumerate(node.output):
        copy.output[position] = f"slipstream.{output}.steps_first" if output else ""
    g.nodes.append(copy)
    return [
        "" if not output else g.transpose(output, 2, 0, 1, 3) if position == 0 else g.transpose(output, 1, 0, 2)
        for position, output in enumerate(copy.output)
    ]


REWRITES: dict[tuple[str, str], Rewrite] = {("", name): _steps_first for name in ("LSTM", "GRU", "RNN")}
