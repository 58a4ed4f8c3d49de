"""SqueezeNet.

Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB model size" (2016).
"""

from __future__ import annotations

from slipstream.frontends.zoo._graph import Graph, Value

# (squeeze, expand) of the fire modules; None is a pooling layer.
_LAYERS = (
    None,
    (16, 64),
    (16, 64),
    None,
    (32, 128),
    (32, 128),
    None,
    (48, 192),
    (48, 192),
    (64, 256),
    (64, 256),
)


def squeezenet1_1(graph: Graph) -> None:
    """SqueezeNet 1.1, the authors' revision with 2.4 times less work than 1.0."""
    x = graph.relu(graph.conv(graph.image(224), 64, 3, stride=2, padding=0))
    for layer in _LAYERS:
        x = graph.max_pool(x, 3, 2, ceil=True) if layer is None else _fire(graph, x, *layer)
    x = graph.relu(graph.conv(x, 1000, 1))
    graph.logits(graph.flatten(graph.global_pool(x)))


def _fire(graph: Graph, x: Value, squeeze: int, expand: int) -> Value:
    x = graph.relu(graph.conv(x, squeeze, 1))
    return graph.concat(graph.relu(graph.conv(x, expand, 1)), graph.relu(graph.conv(x, expand, 3)))
