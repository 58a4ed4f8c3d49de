"""Inception v3: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision" (2015)."""

from __future__ import annotations

from slipstream.frontends.zoo._graph import Graph, Pair, Value

# (channels, kernel) of one convolution that keeps the image's size.
Step = tuple[int, int | Pair]

_EPSILON = 1e-3


def inception_v3(graph: Graph) -> None:
    """Inception v3 on 299 x 299 images, as in torchvision but without the head that only training uses."""
    x = _conv(graph, graph.image(299), 32, stride=2)
    x = _conv(graph, x, 32)
    x = _chain(graph, x, (64, 3))
    x = graph.max_pool(x, 3, 2)
    x = _chain(graph, x, (80, 1))
    x = _conv(graph, x, 192)
    x = graph.max_pool(x, 3, 2)
    for pooled in (32, 64, 64):
        x = _block_35(graph, x, pooled)
    x = _reduce_35(graph, x)
    for width in (128, 160, 160, 192):
        x = _block_17(graph, x, width)
    x = _reduce_17(graph, x)
    for _ in range(2):
        x = _block_8(graph, x)
    graph.classify(x, 1000)


def _block_35(graph: Graph, x: Value, pooled: int) -> Value:
    return graph.concat(
        _chain(graph, x, (64, 1)),
        _chain(graph, x, (48, 1), (64, 5)),
        _chain(graph, x, (64, 1), (96, 3), (96, 3)),
        _pooled(graph, x, pooled),
    )


def _reduce_35(graph: Graph, x: Value) -> Value:
    return graph.concat(
        _conv(graph, x, 384, stride=2),
        _conv(graph, _chain(graph, x, (64, 1), (96, 3)), 96, stride=2),
        graph.max_pool(x, 3, 2),
    )


def _block_17(graph: Graph, x: Value, width: int) -> Value:
    row, column = (1, 7), (7, 1)
    return graph.concat(
        _chain(graph, x, (192, 1)),
        _chain(graph, x, (width, 1), (width, row), (192, column)),
        _chain(graph, x, (width, 1), (width, column), (width, row), (width, column), (192, row)),
        _pooled(graph, x, 192),
    )


def _reduce_17(graph: Graph, x: Value) -> Value:
    return graph.concat(
        _conv(graph, _chain(graph, x, (192, 1)), 320, stride=2),
        _conv(graph, _chain(graph, x, (192, 1), (192, (1, 7)), (192, (7, 1))), 192, stride=2),
        graph.max_pool(x, 3, 2),
    )


def _block_8(graph: Graph, x: Value) -> Value:
    return graph.concat(
        _chain(graph, x, (320, 1)),
        _fork(graph, _chain(graph, x, (384, 1))),
        _fork(graph, _chain(graph, x, (448, 1), (384, 3))),
        _pooled(graph, x, 192),
    )


def _fork(graph: Graph, x: Value) -> Value:
    return graph.concat(_chain(graph, x, (384, (1, 3))), _chain(graph, x, (384, (3, 1))))


def _pooled(graph: Graph, x: Value, out: int) -> Value:
    mean = graph.node("AveragePool", x, kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), count_include_pad=1)
    return _chain(graph, mean, (out, 1))


def _chain(graph: Graph, x: Value, *steps: Step) -> Value:
    for out, kernel in steps:
        x = graph.conv_bn(x, out, kernel, epsilon=_EPSILON)
    return x


def _conv(graph: Graph, x: Value, out: int, *, stride: int = 1) -> Value:
    """A 3x3 convolution without padding."""
    return graph.conv_bn(x, out, 3, stride=stride, padding=0, epsilon=_EPSILON)
