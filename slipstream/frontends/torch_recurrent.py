"""LSTM, GRU and RNN of an exported PyTorch program, as layers instead of calls for every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KINDS = {"lstm.input": "lstm", "gru.input": "gru", "rnn_tanh.input": "rnn", "rnn_relu.input": "rnn"}
# Where ONNX's gates are among PyTorch's: i, o, f, c of i, f, c, o; z, r, h of r, z, h.
_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


def keep_layers(program: Any) -> tuple[Any, dict[str, Callable[[Any, Any], Any]]]:
    """The program decomposed but for its recurrent layers, and converters for these."""
    import torch

    called = {str(node.target).removeprefix("aten.") for node in program.graph.nodes if node.op == "call_function"}
    names = sorted(called & set(_KINDS))
    table = torch.export.default_decompositions()
    for name in names:
        operator, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, operator), overload), None)
    return program.run_decompositions(table), {name: _converter(name) for name in names}


def _converter(name: str) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        return _convert(name, importer.block_builder, *importer.retrieve_args(node))

    return convert


def _convert(
    name: str,
    bb: Any,
    x: Any,
    states: Any,
    weights: Any,
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> Any:
    from tvm import relax

    from slipstream.frontends.recurrent_layer import cut, emit_layer, permuted, reshaped, shape_of
    from slipstream.frontends.recurrent_steps import DEFAULT_ACTIVATIONS, Layer

    kind, directions = _KINDS[name], 2 if both else 1
    each = 4 if biased else 2
    if len(weights) != each * layers * directions or (train and dropout):
        raise NotImplementedError(f"{name} with projections, or in training mode, is not supported")
    states = list(states) if kind == "lstm" else [states]
    if batch_first:
        x = permuted(bb, x, [1, 0, 2])

    def gathered(parts: list[Any], axis: int) -> Any:
        return parts[0] if len(parts) == 1 else bb.emit(relax.op.concat(parts, axis))

    def ordered(weight: Any) -> Any:
        size = shape_of(weight)[0] // len(_ORDER[kind])
        return gathered([cut(bb, weight, 0, n * size, (n + 1) * size) for n in _ORDER[kind]], 0)

    def transposed(position: int, first: int) -> Any:
        """Weights of all directions [directions, inputs, gates * hidden]."""
        matrices = [ordered(weights[first + d * each + position]) for d in range(directions)]
        shapes = [shape_of(matrix) for matrix in matrices]
        turned = [permuted(bb, matrix, [1, 0]) for matrix in matrices]
        return gathered([reshaped(bb, one, [1, n, m]) for one, (m, n) in zip(turned, shapes, strict=True)], 0)

    last: list[list[Any]] = [[] for _ in states]
    for number in range(layers):
        first = number * directions * each
        w, r = transposed(0, first), transposed(1, first)
        steps, batch, _ = shape_of(x)
        hidden, width = shape_of(r)[1:]
        bias = None
        if biased:
            rows = [
                gathered([ordered(weights[first + d * each + position]) for position in (2, 3)], 0)
                for d in range(directions)
            ]
            bias = gathered([reshaped(bb, row, [1, 2 * width]) for row in rows], 0)
        activations = ("relu",) if name.startswith("rnn_relu") else DEFAULT_ACTIVATIONS[kind]
        reverse = (False, True)[:directions]
        dtype = str(x.ty.dtype)
        layer = Layer(kind, steps, batch, hidden, reverse, dtype, activations, linear_before_reset=kind == "gru")
        own = [cut(bb, state, 0, number * directions, (number + 1) * directions) for state in states]
        y, *ends = emit_layer(bb, layer, x, w, r, bias, state=own[0], cell=own[1] if len(own) > 1 else None)
        x = reshaped(bb, permuted(bb, y, [0, 2, 1, 3]), [steps, batch, directions * hidden])
        for collected, end in zip(last, ends, strict=True):
            collected.append(end)
    if batch_first:
        x = permuted(bb, x, [1, 0, 2])
    return bb.emit(relax.Tuple([x, *(gathered(ends, 0) for ends in last)]))
