"""MobileNets, for phones.

Version 1: Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications"
(2017). Version 2: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018).
"""

from __future__ import annotations

from slipstream.frontends.zoo._graph import Graph, Value

# (channels, stride) of the depthwise-separable layers of version 1.
_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))

_V1_EPSILON = 1e-3

# (expansion, channels, repeats, stride) of the stages of version 2.
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v1(graph: Graph) -> None:
    """MobileNet 1.0/224 as its authors published it: ReLU6, TensorFlow's padding, a final convolution."""
    x = _conv_same(graph, graph.image(224), 32, stride=2)
    for out, stride in _V1:
        x = _conv_same(graph, x, x.features, stride=stride, groups=x.features)
        x = graph.conv_bn(x, out, 1, act="relu6", epsilon=_V1_EPSILON)
    x = graph.conv(graph.global_pool(x), 1000, 1, gain=1.0)
    graph.logits(graph.flatten(x))


def _conv_same(graph: Graph, x: Value, out: int, *, stride: int, groups: int = 1) -> Value:
    """A 3x3 convolution padded as TensorFlow's "SAME": at stride 2 on even sizes, only bottom and right."""
    pads = (0, 0, 1, 1) if stride == 2 else (1, 1, 1, 1)
    return graph.conv_bn(x, out, 3, stride=stride, padding=pads, groups=groups, act="relu6", epsilon=_V1_EPSILON)


def mobilenet_v2(graph: Graph) -> None:
    """MobileNetV2 1.0/224, as in torchvision."""
    x = graph.conv_bn(graph.image(224), 32, 3, stride=2, act="relu6")
    for expansion, out, repeats, stride in _V2:
        for index in range(repeats):
            x = _inverted_residual(graph, x, expansion, out, 1 if index else stride)
    graph.classify(graph.conv_bn(x, 1280, 1, act="relu6"), 1000)


def _inverted_residual(graph: Graph, x: Value, expansion: int, out: int, stride: int) -> Value:
    residual = stride == 1 and x.features == out
    wide = expansion * x.features
    branch = graph.conv_bn(x, wide, 1, act="relu6") if expansion > 1 else x
    branch = graph.conv_bn(branch, wide, 3, stride=stride, groups=wide, act="relu6")
    branch = graph.conv_bn(branch, out, 1, act="none", gain=0.5 if residual else 1.0)
    return graph.add(x, branch) if residual else branch
