"""Residual networks: He et al., "Deep Residual Learning for Image Recognition" (2015)."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.frontends.zoo._graph import Graph, Value

Block = Callable[[Graph, Value, int, int], Value]

# At full strength each residual block would double the mean square of the activations.
_BRANCH_GAIN = 0.5


def resnet18(graph: Graph) -> None:
    """ResNet-18."""
    _resnet(graph, _basic, (2, 2, 2, 2))


def resnet50(graph: Graph) -> None:
    """ResNet-50 with the stride on the 3x3 convolution ("v1.5"), as in torchvision."""
    _resnet(graph, _bottleneck, (3, 4, 6, 3))


def _resnet(graph: Graph, block: Block, depths: tuple[int, ...]) -> None:
    x = graph.conv_bn(graph.image(224), 64, 7, stride=2)
    x = graph.max_pool(x, 3, 2, padding=1)
    for stage, depth in enumerate(depths):
        for index in range(depth):
            x = block(graph, x, 64 << stage, 2 if stage and not index else 1)
    graph.classify(x, 1000)


def _basic(graph: Graph, x: Value, width: int, stride: int) -> Value:
    branch = graph.conv_bn(x, width, 3, stride=stride)
    branch = graph.conv_bn(branch, width, 3, act="none", gain=_BRANCH_GAIN)
    return graph.relu(graph.add(branch, _shortcut(graph, x, width, stride)))


def _bottleneck(graph: Graph, x: Value, width: int, stride: int) -> Value:
    branch = graph.conv_bn(x, width, 1)
    branch = graph.conv_bn(branch, width, 3, stride=stride)
    branch = graph.conv_bn(branch, 4 * width, 1, act="none", gain=_BRANCH_GAIN)
    return graph.relu(graph.add(branch, _shortcut(graph, x, 4 * width, stride)))


def _shortcut(graph: Graph, x: Value, out: int, stride: int) -> Value:
    if stride == 1 and x.features == out:
        return x
    return graph.conv_bn(x, out, 1, stride=stride, act="none")
