"""Operators of PyTorch that do a whole layer, as the operators they are made of."""

from __future__ import annotations

from typing import Any


def decompositions() -> dict[Any, Any]:
    """What AOTAutograd replaces before a graph is compiled."""
    import torch

    return {torch.ops.aten._transformer_encoder_layer_fwd.default: _transformer_encoder_layer}


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
    """What `nn.TransformerEncoderLayer` runs in inference."""
    import torch
    from torch.nn import functional

    if mask is not None:
        return NotImplemented

    def attend(x: Any) -> Any:
        batch, length, _ = x.shape
        qkv = functional.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, heads, width // heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.matmul(query, key.transpose(-1, -2)) * (width // heads) ** -0.5
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
