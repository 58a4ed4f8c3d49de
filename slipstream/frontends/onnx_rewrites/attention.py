"""`com.microsoft` Attention and MultiHeadAttention as products, a mask and a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import onnx

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite, attributes_of, inputs_of, refusal
from slipstream.frontends.onnx_rewrites.fused import MICROSOFT


def _heads(g: Builder, value: str, batch: int, length: int, heads: int) -> str:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    return g.transpose(g.reshape(value, batch, length, heads, -1), 0, 2, 1, 3)


def _attend(
    g: Builder, node: onnx.NodeProto, query: str, key: str, value: str, size: int, additions: Sequence[str]
) -> str:
    """softmax(query x key / sqrt(size) + additions) x value, the heads side by side again."""
    like = node.input[0]
    scale = attributes_of(node).get("scale", 0.0) or 1 / sqrt(size)
    scores = g.op("MatMul", query, g.transpose(key, 0, 1, 3, 2))
    scores = g.op("Mul", scores, g.scalar(scale, like))
    for addition in additions:
        scores = g.op("Add", scores, addition)
    probabilities = g.op("Softmax", scores, axis=-1)
    return g.transpose(g.op("MatMul", probabilities, value), 0, 2, 1, 3)


def _mask(g: Builder, node: onnx.NodeProto, mask: str, batch: int, keys: int) -> str:
    """What is added to the scores: a large negative number for keys that are masked out."""
    shape = g.shape(mask)
    like = node.input[0]
    if shape is None or len(shape) not in (1, 2, 3) or shape[0] != batch:
        raise refusal(node, f"a mask of shape {shape} is not supported")
    if len(shape) == 1:
        places = g.constant(np.arange(keys).reshape(1, keys), np.int32)
        seen = g.cast(g.op("Less", places, g.reshape(mask, batch, 1)), g.dtype(like))
        seen = g.reshape(seen, batch, 1, 1, keys)
    else:
        seen = g.cast(mask, g.dtype(like))
        seen = g.reshape(seen, batch, 1, shape[1] if len(shape) == 3 else 1, shape[-1])
    filtered = attributes_of(node).get("mask_filter_value", -10000.0)
    return str(g.op("Mul", g.op("Sub", g.scalar(1.0, like), seen), g.scalar(filtered, like)))


def _causal(g: Builder, node: onnx.NodeProto, queries: int, keys: int) -> str:
    hidden = np.arange(keys)[None, :] > np.arange(queries)[:, None] + keys - queries
    return g.constant(np.where(hidden, np.finfo(np.float32).min / 4, 0.0), g.dtype(node.input[0]))


def _attention(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, weights, bias, mask, past, addition = inputs_of(node, 6)
    attributes = attributes_of(node)
    if past or (len(node.output) > 1 and node.output[1]) or attributes.get("do_rotary", 0):
        raise refusal(node, "a cache of past keys and rotary positions are not supported")
    batch, length, _ = g.static_shape(node)
    heads, width = attributes["num_heads"], g.static_shape(node, 1)[1]
    sizes = list(attributes.get("qkv_hidden_sizes", [])) or [width // 3] * 3
    joined = g.op("MatMul", x, weights)
    if bias:
        joined = g.op("Add", joined, bias)
    ends = np.cumsum(sizes)
    query, key, value = (
        _heads(g, g.slice(joined, 2, int(end - size), int(end)), batch, length, heads)
        for size, end in zip(sizes, ends, strict=True)
    )
    additions = [addition] if addition else []
    if mask:
        additions.append(_mask(g, node, mask, batch, length))
    if attributes.get("unidirectional", 0):
        additions.append(_causal(g, node, length, length))
    merged = _attend(g, node, query, key, value, sizes[0] // heads, additions)
    return [g.reshape(merged, batch, length, sizes[2])]


def _multi_head_attention(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    query, key, value, bias, mask, addition, *past = inputs_of(node, 8)
    attributes = attributes_of(node)
    if any(past) or not (key and value) or any(len(g.static_shape(node, i)) != 3 for i in range(3)):
        raise refusal(node, "packed inputs and a cache of past keys are not supported")
    heads = attributes["num_heads"]
    batch, queries, width = g.static_shape(node)
    keys, value_width = g.static_shape(node, 1)[1], g.static_shape(node, 2)[2]
    if bias:
        bounds = [0, width, 2 * width, 2 * width + value_width]
        query, key, value = (
            str(g.op("Add", one, g.slice(bias, 0, bounds[i], bounds[i + 1])))
            for i, one in enumerate((query, key, value))
        )
    additions = [addition] if addition else []
    if mask:
        additions.append(_mask(g, node, mask, batch, keys))
    if attributes.get("unidirectional", 0):
        additions.append(_causal(g, node, queries, keys))
    query = _heads(g, query, batch, queries, heads)
    key, value = (_heads(g, one, batch, keys, heads) for one in (key, value))
    merged = _attend(g, node, query, key, value, width // heads, additions)
    return [g.reshape(merged, batch, queries, value_width)]


REWRITES: dict[tuple[str, str], Rewrite] = {
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "MultiHeadAttention"): _multi_head_attention,
}
