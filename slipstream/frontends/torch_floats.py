"""Changing the type of the floating-point numbers a PyTorch program computes with."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

_HALVES = ("float16", "bfloat16")


def change_floats(exported: Any, types: dict[Any, Any], change: Callable[[Any], Any]) -> Any:
    """A module of an exported program with other types in its casts and its tensors changed, in place, by `change`."""
    import torch

    def changed(value: Any) -> Any:
        return types.get(value, value) if isinstance(value, torch.dtype) else value

    for node in exported.graph.nodes:
        node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), changed)
    exported.recompile()
    return exported._apply(change)


def half_of(tensors: Any) -> str:
    """The type that all floating-point tensors among these have, if it is one of the halves; else nothing."""
    found = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor.is_floating_point()}
    return found.pop() if len(found) == 1 and found <= set(_HALVES) else ""


def computes_in_halves(program: Any) -> bool:
    values = (node.meta.get("val") for node in program.graph.nodes)
    return any(str(getattr(value, "dtype", "")).removeprefix("torch.") in _HALVES for value in values)


def in_float32(program: Any) -> Any:
    """An exported program that computes in float32 where this one does in halves; its inputs and outputs are the same.

    TVM's importer takes every convolution's result for float32, and cannot add a bias of halves to it. What is computed
    in halves on which target is decided when the model is compiled.
    """
    import torch

    halves = [getattr(torch, name) for name in _HALVES]

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in halves else value

    inner = change_floats(deepcopy(program.module()), dict.fromkeys(halves, torch.float32), wide)
    wanted = set(program.graph_signature.user_inputs)
    inputs = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.name in wanted]
    returned = next(n for n in program.graph.nodes if n.op == "output").args[0]
    first = len(returned) - len(program.graph_signature.user_outputs)  # changed buffers come before
    types = [getattr(getattr(node, "meta", {}).get("val"), "dtype", None) for node in returned[first:]]

    class Widened(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *values: Any) -> Any:
            leaves, structure = torch.utils._pytree.tree_flatten(self.inner(*map(wide, values)))
            narrow = [v if t is None or t == v.dtype else v.to(t) for v, t in zip(leaves, types, strict=True)]
            return torch.utils._pytree.tree_unflatten(narrow, structure)

    zeros = (torch.zeros(tuple(v.shape), dtype=v.dtype, device=v.device) for v in inputs)
    return torch.export.export(Widened(), tuple(zeros))
