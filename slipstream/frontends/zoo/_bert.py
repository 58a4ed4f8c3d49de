"""BERT.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding" (2018).
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from slipstream.frontends.zoo._attention import attend
from slipstream.frontends.zoo._graph import RELU_GAIN, Graph, Value

_LAYERS, _WIDTH, _HEADS, _FEED, _LENGTH = 12, 768, 12, 3072, 128
_VOCABULARY, _POSITIONS, _TYPES = 30522, 512, 2
_EPSILON = 1e-12

# With branches of full scale, the tokens would become nearly equal within a few layers.
_BRANCH_GAIN = 0.5

# What the reference implementation adds to the scores of masked positions.
_MASKED = -10000.0


def bert_base(graph: Graph) -> None:
    """BERT-base with its pooler, for sequences of 128 tokens.

    Inputs are int64 `input_ids` (below 30522), `attention_mask` (0 or 1) and `token_type_ids` (0 or 1), each
    [batch, 128]; outputs are `last_hidden_state` [batch, 128, 768] and `pooler_output` [batch, 768].
    """
    ids, mask, types = (
        graph.input(name, ("batch", _LENGTH), dtype=TensorProto.INT64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    x = _embeddings(graph, ids, types)
    bias = _mask_bias(graph, mask)
    for _ in range(_LAYERS):
        x = _layer(graph, x, bias)
    first = graph.node("Gather", x, graph.constant(np.array(0, np.int64)), axis=1)
    pooled = graph.node("Tanh", graph.linear(first, _WIDTH))
    graph.output(x, "last_hidden_state", ("batch", _LENGTH, _WIDTH))
    graph.output(pooled, "pooler_output", ("batch", _WIDTH))


def _embeddings(graph: Graph, ids: Value, types: Value) -> Value:
    positions = graph.constant(np.arange(_LENGTH, dtype=np.int64)[np.newaxis])
    words = graph.embed(_VOCABULARY, _WIDTH, ids)
    x = graph.add(words, graph.embed(_TYPES, _WIDTH, types))
    x = graph.add(x, graph.embed(_POSITIONS, _WIDTH, positions))
    return graph.layer_norm(x, epsilon=_EPSILON)


def _mask_bias(graph: Graph, mask: Value) -> Value:
    """0 where a position may be attended to and a large negative number elsewhere: [batch, 1, 1, length]."""
    mask = graph.node("Cast", graph.node("Unsqueeze", mask, graph.ints(1, 2)), to=TensorProto.FLOAT)
    masked = graph.node("Sub", graph.scalar(1.0), mask, features=1)
    return graph.node("Mul", masked, graph.scalar(_MASKED))


def _layer(graph: Graph, x: Value, bias: Value) -> Value:
    query, key, value = (graph.project(x, _WIDTH) for _ in range(3))
    mixed = graph.project(attend(graph, query, key, value, _HEADS, mask=bias), _WIDTH, gain=_BRANCH_GAIN)
    x = graph.layer_norm(graph.add(mixed, x), epsilon=_EPSILON)
    hidden = _gelu(graph, graph.project(x, _FEED, gain=RELU_GAIN))
    return graph.layer_norm(graph.add(graph.project(hidden, _WIDTH, gain=_BRANCH_GAIN), x), epsilon=_EPSILON)


def _gelu(graph: Graph, x: Value) -> Value:
    """The exact Gaussian error linear unit: Hendrycks and Gimpel (2016)."""
    error = graph.node("Erf", graph.node("Div", x, graph.scalar(math.sqrt(2.0))))
    product = graph.node("Mul", x, graph.add(error, graph.scalar(1.0)))
    return graph.node("Mul", product, graph.scalar(0.5))
