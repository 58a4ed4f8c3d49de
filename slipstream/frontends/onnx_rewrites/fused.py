"""Fusions that ONNX Runtime writes when an optimised model is saved (`com.microsoft`), as what they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import onnx

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite, attributes_of, inputs_of, refusal

MICROSOFT = "com.microsoft"


def _activation(g: Builder, node: onnx.NodeProto, value: str, attributes: dict[str, Any]) -> str:
    """The activation that a fused convolution or product ends in."""
    kind = attributes.get("activation", "")
    params = list(attributes.get("activation_params", []))
    if "activation_alpha" in attributes:
        params = [attributes["activation_alpha"], *params]
    match kind:
        case "":
            return value
        case "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign":
            return str(g.op(kind, value))
        case "LeakyRelu" | "Elu":
            return str(g.op(kind, value, alpha=float(params[0]) if params else None))
        case "HardSigmoid":
            alpha, beta = params or [0.2, 0.5]
            return str(g.op(kind, value, alpha=float(alpha), beta=float(beta)))
        case "Clip":
            low, high = params
            if g.opset < 11:
                return str(g.op("Clip", value, min=float(low), max=float(high)))
            return str(g.op("Clip", value, g.scalar(low, node.input[0]), g.scalar(high, node.input[0])))
    raise refusal(node, f"the activation {kind} is not supported")


_OF_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _fused_conv(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, w, bias, other = inputs_of(node, 4)
    attributes = attributes_of(node)
    own = {name: attributes[name] for name in _OF_CONV if name in attributes}
    result = g.op("Conv", x, w, *([bias] if bias else []), **own)
    if other:
        result = g.op("Add", result, other)
    return [_activation(g, node, result, attributes)]


def _nhwc_conv(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, w, bias = inputs_of(node, 3)
    rank = len(g.static_shape(node, 1))
    attributes = attributes_of(node)
    own = {name: attributes[name] for name in _OF_CONV if name in attributes}
    image = g.transpose(x, 0, rank - 1, *range(1, rank - 1))
    result = g.op("Conv", image, w, *([bias] if bias else []), **own)
    return [g.transpose(_activation(g, node, result, attributes), 0, *range(2, rank), 1)]


def _fused_matmul(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    attributes = attributes_of(node)
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        raise refusal(node, "a transposed batch is not supported")
    operands = []
    for position, name in enumerate(("transA", "transB")):
        operand, rank = node.input[position], len(g.static_shape(node, position))
        if attributes.get(name, 0) and rank > 1:
            operand = g.transpose(operand, *range(rank - 2), rank - 1, rank - 2)
        operands.append(operand)
    result = g.op("MatMul", *operands)
    alpha = attributes.get("alpha", 1.0)
    return [result if alpha == 1.0 else g.op("Mul", result, g.scalar(alpha, node.input[0]))]


def _fused_gemm(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    attributes = attributes_of(node)
    own = {name: attributes[name] for name in ("alpha", "beta", "transA", "transB") if name in attributes}
    return [_activation(g, node, g.op("Gemm", *node.input, **own), attributes)]


def _erf_gelu(g: Builder, x: str, like: str) -> str:
    inner = g.op("Erf", g.op("Mul", x, g.scalar(sqrt(0.5), like)))
    return str(g.op("Mul", g.op("Mul", x, g.scalar(0.5, like)), g.op("Add", inner, g.scalar(1.0, like))))


def _tanh_gelu(g: Builder, x: str, like: str) -> str:
    cube = g.op("Mul", g.op("Mul", x, x), x)
    inner = g.op("Add", x, g.op("Mul", cube, g.scalar(0.044715, like)))
    bend = g.op("Tanh", g.op("Mul", inner, g.scalar(sqrt(2 / np.pi), like)))
    return str(g.op("Mul", g.op("Mul", x, g.scalar(0.5, like)), g.op("Add", bend, g.scalar(1.0, like))))


def _gelu(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    return [_erf_gelu(g, node.input[0], node.input[0])]


def _bias_gelu(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    return [_erf_gelu(g, g.op("Add", *node.input), node.input[0])]


def _fast_gelu(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, bias = inputs_of(node, 2)
    return [_tanh_gelu(g, g.op("Add", x, bias) if bias else x, x)]


def _quick_gelu(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x = node.input[0]
    alpha = attributes_of(node).get("alpha", 1.702)
    return [g.op("Mul", x, g.op("Sigmoid", g.op("Mul", x, g.scalar(alpha, x))))]


def rms_norm(g: Builder, x: str, scale: str, epsilon: float, like: str) -> str:
    mean = g.reduce("ReduceMean", g.op("Mul", x, x), [-1])
    root = g.op("Sqrt", g.op("Add", mean, g.scalar(epsilon, like)))
    return str(g.op("Mul", g.op("Div", x, root), scale))


def _simplified_layer_norm(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    return [rms_norm(g, node.input[0], node.input[1], attributes_of(node).get("epsilon", 1e-5), node.input[0])]


def _skip_layer_norm(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, skip, gamma, beta, bias = inputs_of(node, 5)
    total = g.op("Add", x, skip)
    if bias:
        total = g.op("Add", total, bias)
    return [layer_norm(g, node, total, gamma, beta), "", "", total]


def _skip_simplified_layer_norm(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    x, skip, gamma, bias = inputs_of(node, 4)
    total = g.op("Add", x, skip)
    if bias:
        total = g.op("Add", total, bias)
    return [rms_norm(g, total, gamma, attributes_of(node).get("epsilon", 1e-12), x), "", "", total]


def layer_norm(g: Builder, node: onnx.NodeProto, value: str, gamma: str, beta: str) -> str:
    epsilon = attributes_of(node).get("epsilon", 1e-12)
    return str(g.op("LayerNormalization", value, gamma, *([beta] if beta else []), axis=-1, epsilon=epsilon))


def _embed_layer_norm(g: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    ids, segments, words, positions, segment_table, gamma, beta, mask, position_ids = inputs_of(node, 9)
    if len(node.output) > 1 and node.output[1] and mask:
        counted = g.reduce("ReduceSum", mask, [1], keepdims=False)
    else:
        counted = g.constant(np.zeros(g.static_shape(node)[0], np.int32))
    _, length = g.static_shape(node)
    places = g.op("Gather", positions, position_ids or g.constant(np.arange(length), np.int64))
    total = g.op("Add", g.op("Gather", words, ids), places)
    if segments:
        total = g.op("Add", total, g.op("Gather", segment_table, segments))
    return [layer_norm(g, node, total, gamma, beta), counted, total]


REWRITES: dict[tuple[str, str], Rewrite] = {
    (MICROSOFT, "FusedConv"): _fused_conv,
    (MICROSOFT, "NhwcFusedConv"): _nhwc_conv,
    (MICROSOFT, "NhwcConv"): _nhwc_conv,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
    (MICROSOFT, "TransposeMatMul"): _fused_matmul,
    (MICROSOFT, "FusedGemm"): _fused_gemm,
    (MICROSOFT, "Gelu"): _gelu,
    (MICROSOFT, "BiasGelu"): _bias_gelu,
    (MICROSOFT, "FastGelu"): _fast_gelu,
    (MICROSOFT, "QuickGelu"): _quick_gelu,
    (MICROSOFT, "SkipLayerNormalization"): _skip_layer_norm,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_simplified_layer_norm,
    (MICROSOFT, "EmbedLayerNormalization"): _embed_layer_norm,
    ("", "SimplifiedLayerNormalization"): _simplified_layer_norm,
}
