"""The encoder of the original transformer: Vaswani et al., "Attention Is All You Need" (2017)."""

from __future__ import annotations

from slipstream.frontends.zoo._attention import attend
from slipstream.frontends.zoo._graph import RELU_GAIN, Graph, Value

_LAYERS, _WIDTH, _HEADS, _FEED, _LENGTH = 6, 512, 8, 2048, 128
_EPSILON = 1e-5

# With branches of full scale, the tokens would become nearly equal within a few layers.
_BRANCH_GAIN = 0.5


def transformer_encoder(graph: Graph) -> None:
    """The paper's base encoder on embedded input, computing what torch.nn.TransformerEncoder does by default.

    Input `src` and output `output` are [batch, 128, 512]; the norm comes after each residual.
    """
    shape = ("batch", _LENGTH, _WIDTH)
    x = graph.input("src", shape, features=_WIDTH)
    for _ in range(_LAYERS):
        x = _layer(graph, x)
    graph.output(x, "output", shape)


def _layer(graph: Graph, x: Value) -> Value:
    query, key, value = graph.split(graph.project(x, 3 * _WIDTH), 3)
    mixed = graph.project(attend(graph, query, key, value, _HEADS), _WIDTH, gain=_BRANCH_GAIN)
    x = graph.layer_norm(graph.add(x, mixed), epsilon=_EPSILON)
    hidden = graph.relu(graph.project(x, _FEED, gain=RELU_GAIN))
    return graph.layer_norm(graph.add(x, graph.project(hidden, _WIDTH, gain=_BRANCH_GAIN)), epsilon=_EPSILON)
