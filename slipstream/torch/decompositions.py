"""Operators of PyTorch that do a whole layer, as the operators they are made of."""

from __future__ import annotations

from typing import Any


def decompositions() -> dict[Any, Any]:
    """What AOTAutograd replaces before a graph is compiled."""
    import torch

    aten = torch.ops.aten
    return {
        aten._transformer_encoder_layer_fwd.default: _transformer_encoder_layer,
        aten.index_copy.default: _index_copy,
        aten.index_put.default: _index_put,
    }


def use_plain_softmax(module: Any) -> None:
    """Where attention has no mask that could leave nothing of a row, its softmax needs not check for that."""
    import torch

    aten = torch.ops.aten
    for node in module.graph.nodes:
        if node.target is aten._safe_softmax.default and not node.kwargs and not _may_mask_a_row(node.args[0]):
            node.target, node.args = aten._softmax.default, (*node.args, False)
    module.recompile()


def _may_mask_a_row(scores: Any) -> bool:
    """Whether something is added to a product, but for a causal mask."""
    import torch

    aten = torch.ops.aten
    while scores.target in (aten.view.default, aten._unsafe_view.default, aten.mul.Scalar, aten.mul.Tensor):
        scores = scores.args[0]
    if scores.target is aten.add.Tensor and getattr(scores.args[1], "target", None) is aten.where.self:
        condition = scores.args[1].args[0]
        return getattr(condition, "target", None) is not aten.tril.default
    return scores.target is not aten.bmm.default


def _index_copy(x: Any, axis: int, index: Any, source: Any) -> Any:
    """Rows of `source` in the place of rows of `x`, as caches of keys and values are written.

    Each row looks for what replaces it: rows are independent, and an index outside writes nowhere.
    """
    import torch

    if x.dim() == 0 or source.dim() != x.dim():
        return NotImplemented
    axis %= x.dim()
    rows = torch.arange(x.shape[axis], device=x.device)
    replaced = index.reshape(-1, 1) == rows
    if source.shape[axis] != 1:
        source = source.index_select(axis, replaced.to(torch.int32).argmax(0))
    shape = [-1 if i == axis else 1 for i in range(x.dim())]
    return torch.where(replaced.any(0).reshape(shape), source, x)


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """An assignment to rows, `x[:, rows] = values`; others stay as they are."""
    import torch

    given = [axis for axis, index in enumerate(indices) if index is not None]
    if accumulate or len(given) != 1 or x.dim() == 1:
        return NotImplemented
    axis, index = given[0], indices[given[0]]
    if index.dim() != 1 or index.dtype == torch.bool:
        return NotImplemented
    index = torch.remainder(index, x.shape[axis])
    shape = [*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]]
    return _index_copy(x, axis, index, values.expand(shape))


def _transformer_encoder_layer(
    source: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    projection_weight: Any,
    projection_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    epsilon: float,
    norm1_weight: Any,
    norm1_bias: Any,
    norm2_weight: Any,
    norm2_bias: Any,
    ffn1_weight: Any,
    ffn1_bias: Any,
    ffn2_weight: Any,
    ffn2_bias: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """What `nn.TransformerEncoderLayer` runs in inference. Where `mask` is not zero nothing is attended to."""
    import torch
    from torch.nn import functional

    if mask is not None:
        # Of type 0 it is by position, of type 1 by token of a batch, of type 2 has all four axes.
        mask = mask.to(torch.bool)[:, None, None] if mask_type == 1 else mask.to(torch.bool)

    def attend(x: Any) -> Any:
        batch, length, _ = x.shape
        qkv = functional.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, heads, width // heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.matmul(query, key.transpose(-1, -2)) * (width // heads) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        mixed = torch.matmul(scores.softmax(-1), value).transpose(1, 2).reshape(batch, length, width)
        return functional.linear(mixed, projection_weight, projection_bias)

    def feed_forward(x: Any) -> Any:
        hidden = functional.linear(x, ffn1_weight, ffn1_bias)
        active = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(active, ffn2_weight, ffn2_bias)

    def norm1(x: Any) -> Any:
        return functional.layer_norm(x, [width], norm1_weight, norm1_bias, epsilon)

    def norm2(x: Any) -> Any:
        return functional.layer_norm(x, [width], norm2_weight, norm2_bias, epsilon)

    if norm_first:
        source = source + attend(norm1(source))
        return source + feed_forward(norm2(source))
    source = norm1(source + attend(source))
    return norm2(source + feed_forward(source))
