"""Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014)."""

from __future__ import annotations

from slipstream.frontends.zoo._graph import RELU_GAIN, Graph


def vgg16(graph: Graph) -> None:
    """VGG-16 (configuration D), without batch norms."""
    _vgg(graph, (2, 2, 3, 3, 3))


def vgg19(graph: Graph) -> None:
    """VGG-19 (configuration E), without batch norms."""
    _vgg(graph, (2, 2, 4, 4, 4))


def _vgg(graph: Graph, depths: tuple[int, ...]) -> None:
    x = graph.image(224)
    for width, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            x = graph.relu(graph.conv(x, width, 3))
        x = graph.max_pool(x, 2, 2)
    x = graph.flatten(x, features=512 * 7 * 7)
    x = graph.relu(graph.linear(x, 4096, gain=RELU_GAIN))
    x = graph.relu(graph.linear(x, 4096, gain=RELU_GAIN))
    graph.logits(graph.linear(x, 1000))
