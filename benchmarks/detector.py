"""A detector for the GPU benchmark: convolutions with SiLU, splits, concatenations, upsampling and three heads.

The blocks are those of YOLOv8 (Jocher et al., Ultralytics, 2023) in its smallest size; weights are random.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slipstream.frontends.zoo._graph import Graph, Value

SIZE = 640
_CLASSES, _BINS = 80, 64


def write_detector(path: Path) -> Path:
    """The model as an ONNX file; input `input` [batch, 3, 640, 640], output `y` [batch, 144, 8400]."""
    graph = Graph("detector", 0)
    x = graph.image(SIZE)
    scales = []
    for width, repeats in ((32, 1), (64, 2), (128, 2), (256, 1)):
        x = _conv(graph, x if width > 32 else _conv(graph, x, 16, 3, 2), width, 3, 2)
        x = _split_block(graph, x, width, repeats, residual=True)
        scales.append(x)
    fine, middle, coarse = scales[1], scales[2], _pyramid(graph, x)
    middle = _split_block(graph, graph.concat(_double(graph, coarse), middle), 128, 1)
    fine = _split_block(graph, graph.concat(_double(graph, middle), fine), 64, 1)
    middle = _split_block(graph, graph.concat(_conv(graph, fine, 64, 3, 2), middle), 128, 1)
    coarse = _split_block(graph, graph.concat(_conv(graph, middle, 128, 3, 2), coarse), 256, 1)
    heads = [_head(graph, feature) for feature in (fine, middle, coarse)]
    joined = graph.node("Concat", *heads, axis=2)
    graph.output(joined, "y", ("batch", _CLASSES + _BINS, sum((SIZE // step) ** 2 for step in (8, 16, 32))))
    path.write_bytes(graph.model.SerializeToString())
    return path


def _conv(graph: Graph, x: Value, out: int, kernel: int, stride: int = 1) -> Value:
    return graph.conv_bn(x, out, kernel, stride=stride, act="silu")


def _split_block(graph: Graph, x: Value, out: int, repeats: int, *, residual: bool = False) -> Value:
    """Half of the channels go through `repeats` pairs of convolutions; the results of all steps are joined."""
    whole = _conv(graph, x, out, 1)
    parts = [_channels(graph, whole, begin, begin + out // 2) for begin in (0, out // 2)]
    for _ in range(repeats):
        new = _conv(graph, _conv(graph, parts[-1], out // 2, 3), out // 2, 3)
        parts.append(graph.add(parts[-1], new) if residual else new)
    return _conv(graph, graph.concat(*parts), out, 1)


def _pyramid(graph: Graph, x: Value) -> Value:
    """Maxima over ever larger windows, joined."""
    pooled = [_conv(graph, x, x.features // 2, 1)]
    for _ in range(3):
        pooled.append(graph.max_pool(pooled[-1], 5, 1, padding=2))
    return _conv(graph, graph.concat(*pooled), x.features, 1)


def _channels(graph: Graph, x: Value, begin: int, end: int) -> Value:
    return graph.node("Slice", x, graph.ints(begin), graph.ints(end), graph.ints(1), features=end - begin)


def _double(graph: Graph, x: Value) -> Value:
    return graph.node("Resize", x, "", graph.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")


def _head(graph: Graph, x: Value) -> Value:
    """Boxes and classes of every pixel, [batch, boxes and classes, pixels]."""
    branches = []
    for width, out in ((64, _BINS), (80, _CLASSES)):
        hidden = _conv(graph, _conv(graph, x, width, 3), width, 3)
        branches.append(graph.conv(hidden, out, 1, gain=1.0))
    return graph.node("Reshape", graph.concat(*branches), graph.ints(0, _BINS + _CLASSES, -1))
