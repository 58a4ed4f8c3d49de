"""Layers that AOTAutograd would take apart: they pass through it as one operator each.

Of an LSTM it would make operators for every step, of an interpolation gathers by computed indices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

_RECURRENT = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
)
_ONE_STATE = f"(Tensor input, Tensor hx, {_RECURRENT}) -> (Tensor, Tensor)"
_SCHEMAS = {
    "lstm": f"(Tensor input, Tensor[] hx, {_RECURRENT}) -> (Tensor, Tensor, Tensor)",
    "gru": _ONE_STATE,
    "rnn_tanh": _ONE_STATE,
    "rnn_relu": _ONE_STATE,
    "interpolate": "(Tensor input, SymInt[]? size, float[]? scale_factor, str mode, bool? align_corners, "
    "bool? recompute_scale_factor, bool antialias) -> Tensor",
}
_IMAGES = 4  # dimensions
_MODES = ("nearest", "bilinear", "bicubic")


@cache
def _operators() -> tuple[dict[Callable[..., Any], Any], Any]:
    """PyTorch's function of each layer -> the operator that stands for it; and what keeps these registered."""
    import torch

    library = torch.library.Library("slipstream", "FRAGMENT")
    operators = {}
    for name, schema in _SCHEMAS.items():
        function = torch.nn.functional.interpolate if name == "interpolate" else getattr(torch, name)
        library.define(name + schema)
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"slipstream::{name}", function, lib=library)
        operators[function] = getattr(torch.ops.slipstream, name).default
    return operators, library


def keep_whole(module: Any) -> None:
    """Let these layers of a graph that Dynamo captured pass through AOTAutograd."""
    operators, _ = _operators()
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in operators:
            continue
        arguments = _of_interpolation(node) if node.target.__name__ == "interpolate" else _of_layer(node)
        if arguments is not None:
            node.target, node.args, node.kwargs = operators[node.target], arguments, {}
    module.recompile()


def restore(module: Any) -> None:
    """Call PyTorch's functions again, in a graph that AOTAutograd made."""
    functions = {operator: function for function, operator in _operators()[0].items()}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in functions:
            node.target = functions[node.target]
    module.recompile()


def _of_layer(node: Any) -> tuple[Any, ...] | None:
    """The arguments of a recurrent layer; None for packed sequences, where weights come later."""
    arguments: tuple[Any, ...] = node.args
    return arguments if len(arguments) == 9 and isinstance(arguments[3], bool) else None


def _of_interpolation(node: Any) -> tuple[Any, ...] | None:
    """The arguments of an interpolation of images, sizes and factors of each axis; None for others.

    To the nearest pixel only whole factors: TVM rounds others differently.
    """
    from torch.nn.functional import interpolate

    bound = inspect.signature(interpolate).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    source, size, factor, mode, *others = bound.args
    if source.meta["example_value"].ndim != _IMAGES or mode not in _MODES:
        return None
    size = [size] * 2 if size is not None and not isinstance(size, list | tuple) else size
    if factor is not None:
        factors = list(factor) if isinstance(factor, list | tuple) else [factor] * 2
        if not all(isinstance(one, int | float) for one in factors):
            return None
        factor = [float(one) for one in factors]
    if mode == "nearest" and (factor is None or not all(one.is_integer() for one in factor)):
        return None
    return source, size, factor, mode, *others
