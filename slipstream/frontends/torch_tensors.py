"""PyTorch programs that take or return more than tensors one by one: tuples, mappings, keywords, constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.errors import UnsupportedModelError, first_line


def tensor_inputs(program: Any) -> list[Any]:
    """The nodes of the tensors that an exported program takes; what else it takes the export made constants."""
    from torch.export.graph_signature import ConstantArgument

    wanted = {spec.arg.name for spec in _taken(program) if not isinstance(spec.arg, ConstantArgument)}
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in wanted]
    for node in nodes:
        if not hasattr(node.meta["val"], "shape"):
            raise UnsupportedModelError(f"input {node.name!r} is a number that may change: export with a fixed one")
    return nodes


def arguments(program: Any, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a program is called with for these tensors: its positional arguments and those by keyword."""
    import torch

    left = iter(tensors)
    constant = torch.export.graph_signature.ConstantArgument
    leaves = [spec.arg.value if isinstance(spec.arg, constant) else next(left) for spec in _taken(program)]
    positional, keywords = torch.utils._pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return tuple(positional), keywords


def output_names(program: Any) -> list[str]:
    """The tensors that a program returns; None is none of them, anything else is refused."""
    from torch.export.graph_signature import TensorArgument

    returned = [spec.arg for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    for position, one in enumerate(returned):
        if not isinstance(one, TensorArgument) and getattr(one, "value", one) is not None:
            raise UnsupportedModelError(f"output {position} of the model is no tensor: return tensors alone")
    return [one.name for one in returned if isinstance(one, TensorArgument)]


def of_tensors(program: Any) -> Any:
    """The same program as one that takes and returns tensors one by one; itself if it does."""
    import torch

    inputs, outputs = tensor_inputs(program), output_names(program)
    marks = list(range(len(inputs)))
    if arguments(program, marks) == (tuple(marks), {}) and len(outputs) == len(program.graph_signature.user_outputs):
        return program
    zeros = [torch.zeros(tuple(v.shape), dtype=v.dtype, device=v.device) for v in (n.meta["val"] for n in inputs)]
    try:
        return torch.export.export(module_of_tensors(program), tuple(zeros))
    except Exception as error:
        raise UnsupportedModelError(f"torch.export cannot capture the program again: {first_line(error)}") from error


def module_of_tensors(program: Any) -> Any:
    """A module that takes the tensors of a program and returns those that it returns."""
    import torch

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = program.module()

        def forward(self, *tensors: Any) -> Any:
            positional, keywords = arguments(program, tensors)
            returned = torch.utils._pytree.tree_leaves(self.inner(*positional, **keywords))
            return tuple(one for one in returned if one is not None)

    return Flat()


def _taken(program: Any) -> list[Any]:
    return [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
