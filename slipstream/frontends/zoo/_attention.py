"""Multi-head attention: Vaswani et al., "Attention Is All You Need" (2017)."""

from __future__ import annotations

import math

from slipstream.frontends.zoo._graph import Graph, Value


def attend(graph: Graph, query: Value, key: Value, value: Value, heads: int, *, mask: Value | None = None) -> Value:
    """Scaled dot-product attention; the heads lie side by side in the features, `mask` adds to the scores."""
    width = query.features // heads
    split = graph.ints(0, 0, heads, width)
    query = graph.node("Transpose", graph.node("Reshape", query, split), perm=(0, 2, 1, 3))
    key = graph.node("Transpose", graph.node("Reshape", key, split), perm=(0, 2, 3, 1))
    value = graph.node("Transpose", graph.node("Reshape", value, split), perm=(0, 2, 1, 3))
    scores = graph.node("Div", graph.node("MatMul", query, key), graph.scalar(math.sqrt(width)))
    if mask is not None:
        scores = graph.add(scores, mask)
    mixed = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), value)
    return graph.node(
        "Reshape",
        graph.node("Transpose", mixed, perm=(0, 2, 1, 3)),
        graph.ints(0, 0, heads * width),
        features=heads * width,
    )
