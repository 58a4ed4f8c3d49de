"""Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (2019)."""

from __future__ import annotations

from slipstream.frontends.zoo._graph import Graph, Value

# (expansion, kernel, stride, channels, repeats) of the stages of B0.
_B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def efficientnet_b0(graph: Graph) -> None:
    """EfficientNet-B0, as in torchvision: SiLU and squeeze-and-excitation (Hu et al., 2017) throughout."""
    x = graph.conv_bn(graph.image(224), 32, 3, stride=2, act="silu")
    for expansion, kernel, stride, out, repeats in _B0:
        for index in range(repeats):
            x = _block(graph, x, expansion, kernel, 1 if index else stride, out)
    graph.classify(graph.conv_bn(x, 1280, 1, act="silu"), 1000)


def _block(graph: Graph, x: Value, expansion: int, kernel: int, stride: int, out: int) -> Value:
    residual = stride == 1 and x.features == out
    wide = expansion * x.features
    branch = graph.conv_bn(x, wide, 1, act="silu") if expansion > 1 else x
    branch = graph.conv_bn(branch, wide, kernel, stride=stride, groups=wide, act="silu")
    branch = _excite(graph, branch, x.features // 4)
    # The excitation is a factor of about 1/2; the gain makes up for it.
    branch = graph.conv_bn(branch, out, 1, act="none", gain=0.8 if residual else 2.0)
    return graph.add(branch, x) if residual else branch


def _excite(graph: Graph, x: Value, squeezed: int) -> Value:
    scale = graph.conv(graph.global_pool(x), squeezed, 1)
    scale = graph.conv(graph.activate(scale, "silu"), x.features, 1)
    return graph.node("Mul", x, graph.node("Sigmoid", scale))
