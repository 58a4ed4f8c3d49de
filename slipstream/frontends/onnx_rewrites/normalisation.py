"""Normalisations whose statistics are outputs too, or along other axes than TVM's operators have."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite, attributes_of, inputs_of


def _layer_norm(g: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """One that also returns mean and inverse deviation."""
    if not any(node.output[1:]):
        return None
    x, scale, bias = inputs_of(node, 3)
    attributes = attributes_of(node)
    rank = len(g.static_shape(node))
    axes = list(range(attributes.get("axis", -1) % rank, rank))
    mean = g.reduce("ReduceMean", x, axes)
    centred = g.op("Sub", x, mean)
    inverse = _inverse_deviation(g, centred, axes, attributes.get("epsilon", 1e-5), x)
    result = g.op("Mul", g.op("Mul", centred, inverse), scale)
    return [g.op("Add", result, bias) if bias else result, mean, inverse]


def _rms_norm(g: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    x, scale = node.input
    attributes = attributes_of(node)
    rank = len(g.static_shape(node))
    axes = list(range(attributes.get("axis", -1) % rank, rank))
    inverse = _inverse_deviation(g, x, axes, attributes.get("epsilon", 1e-5), x)
    return [g.op("Mul", g.op("Mul", x, inverse), scale)]


def _inverse_deviation(g: Builder, centred: str, axes: list[int], epsilon: float, like: str) -> str:
    variance = g.reduce("ReduceMean", g.op("Mul", centred, centred), axes)
    return str(g.op("Reciprocal", g.op("Sqrt", g.op("Add", variance, g.scalar(epsilon, like)))))


def _batch_norm(g: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """One in training mode: by the statistics of this batch, which also move the running ones."""
    attributes = attributes_of(node)
    if not attributes.get("training_mode", 0):
        return None
    x, scale, bias, mean, variance = node.input
    shape = g.static_shape(node)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    channels = shape[1]
    along = [channels if axis == 1 else 1 for axis in range(len(shape))]
    current = g.reduce("ReduceMean", x, axes)
    centred = g.op("Sub", x, current)
    spread = g.reduce("ReduceMean", g.op("Mul", centred, centred), axes)
    inverse = g.op("Reciprocal", g.op("Sqrt", g.op("Add", spread, g.scalar(attributes.get("epsilon", 1e-5), x))))
    result = g.op("Mul", g.op("Mul", centred, inverse), g.reshape(scale, *along))
    momentum = attributes.get("momentum", 0.9)

    def moved(running: str, now: str) -> str:
        kept = g.op("Mul", running, g.scalar(momentum, running))
        return str(g.op("Add", kept, g.op("Mul", g.reshape(now, channels), g.scalar(1 - momentum, running))))

    return [g.op("Add", result, g.reshape(bias, *along)), moved(mean, current), moved(variance, spread)]


def _mean_variance_norm(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    """TVM takes the variance for the difference of two means, which has no digits left where the mean is large."""
    (x,) = node.input
    axes = attributes_of(node).get("axes", [0, 2, 3])
    centred = g.op("Sub", x, g.reduce("ReduceMean", x, axes))
    deviation = g.op("Sqrt", g.reduce("ReduceMean", g.op("Mul", centred, centred), axes))
    return [g.op("Div", centred, g.op("Add", deviation, g.scalar(1e-9, x)))]


REWRITES: dict[tuple[str, str], Rewrite] = {
    ("", "LayerNormalization"): _layer_norm,
    ("", "RMSNormalization"): _rms_norm,
    ("", "BatchNormalization"): _batch_norm,
    ("", "MeanVarianceNormalization"): _mean_variance_norm,
}
