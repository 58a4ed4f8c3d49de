"""A network small enough to tune in a test."""

from __future__ import annotations

from slipstream.frontends.zoo._graph import Graph


def tiny_cnn(graph: Graph) -> None:
    """A strided, a depthwise and a pointwise convolution with one residual: 3 x 32 x 32 to 10 classes."""
    x = graph.conv_bn(graph.image(32), 32, 3, stride=2)
    branch = graph.conv_bn(x, 32, 3, groups=32)
    branch = graph.conv_bn(branch, 32, 1, act="none")
    graph.classify(graph.relu(graph.add(x, branch)), 10)
