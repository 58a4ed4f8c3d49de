"""PyTorch → `Model`: a module with example inputs, an `ExportedProgram`, or a saved `.pt2` (extra `torch`)."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.errors import MissingDependencyError, ModelError, ShapeError, UnsupportedModelError, first_line
from slipstream.frontends.inputs import Array, TensorSpec
from slipstream.frontends.model import Model
from slipstream.frontends.onnx_graph import output_spec
from slipstream.frontends.torch_floats import computes_in_halves, in_float32
from slipstream.frontends.torch_indices import use_positive_indices
from slipstream.frontends.torch_recurrent import keep_layers
from slipstream.frontends.torch_tensors import arguments, of_tensors, output_names, tensor_inputs


class TorchReference:
    """The exported program, run by PyTorch itself."""

    name = "torch"

    def __init__(self, program: Any, inputs: tuple[TensorSpec, ...]) -> None:
        self.program = program
        self._inputs = inputs

    def outputs(self, feeds: Sequence[dict[str, Array]]) -> list[list[Array]]:
        torch = import_torch()
        module = self.program.module()
        results = []
        with torch.no_grad():
            for feed in feeds:
                returned = module(*(torch.from_numpy(feed[spec.name]) for spec in self._inputs))
                leaves = torch.utils._pytree.tree_leaves(returned)
                results.append([np.asarray(leaf.detach().numpy()) for leaf in leaves])
        return results


def import_torch() -> Any:
    """PyTorch, or an error that says how to install it."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("PyTorch is not installed: pip install 'slipstream[torch]'") from error
    return torch


def load_torch(
    model: Any, example_inputs: Sequence[Any] | None, shapes: Mapping[str, Sequence[int]] | None = None
) -> Model:
    """A `torch.nn.Module` with example inputs, or an `ExportedProgram`, with inputs of these `shapes`."""
    torch = import_torch()
    if isinstance(model, torch.export.ExportedProgram):
        return _import(static_program(model, shapes), name="model", source="memory", shapes=shapes)
    if not isinstance(model, torch.nn.Module):
        raise ModelError(
            f"a {type(model).__name__} is no model: give a path, a zoo name, an onnx.ModelProto, a torch.nn.Module "
            "with example inputs, or a torch.export.ExportedProgram"
        )
    if example_inputs is None:
        raise ModelError("a torch.nn.Module needs example inputs: pass example_inputs=(tensor, ...)")
    if shapes:
        names = list(inspect.signature(model.forward).parameters)
        example_inputs = _with_shapes(dict(zip(names, example_inputs, strict=False)), shapes)
    was_training = model.training
    try:
        program = torch.export.export(model.eval(), tuple(example_inputs))
    except Exception as error:
        raise UnsupportedModelError(f"torch.export cannot capture the module: {first_line(error)}") from error
    finally:
        model.train(was_training)
    return _import(program, name=type(model).__name__, source="memory", shapes=shapes)


def load_pt2(path: Path, shapes: Mapping[str, Sequence[int]] | None = None) -> Model:
    """What `torch.export.save` wrote, with inputs of these `shapes`."""
    torch = import_torch()
    try:
        program = torch.export.load(str(path))
    except Exception as error:
        raise ModelError(f"{path} is not a saved torch.export program: {first_line(error)}") from error
    return _import(static_program(program, shapes), name=path.stem, source=str(path.absolute()), shapes=shapes)


def static_program(program: Any, shapes: Mapping[str, Sequence[int]] | None) -> Any:
    """An exported program whose dynamic inputs have these `shapes`; itself if nothing is to be changed."""
    if not shapes:
        return program
    torch = import_torch()
    values = {node.name: node.meta["val"] for node in tensor_inputs(program)}
    inputs = _with_shapes(values, shapes)
    for name, value in zip(values, inputs, strict=True):
        _check_static(name, value)
    static = [torch.zeros(tuple(value.shape), dtype=value.dtype, device=value.device) for value in inputs]
    try:
        return torch.export.export(program.module(), *arguments(program, static))
    except Exception as error:
        given = ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items())
        raise ShapeError(f"the exported program does not take {given}: {first_line(error)}") from error


def _with_shapes(values: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> list[Any]:
    """These tensors or, for those that `shapes` names, zeros of that shape."""
    torch = import_torch()
    for name, shape in shapes.items():
        if name not in values:
            raise ShapeError(f"--shape names an input {name!r} the model does not have: it has {', '.join(values)}")
        if not isinstance(values[name], torch.Tensor):
            raise ShapeError(f"--shape names the input {name!r}, which is no tensor: pass example inputs of that shape")
        if len(shape) != values[name].ndim:
            given = "x".join(map(str, shape))
            raise ShapeError(
                f"--shape {name}={given} has {len(shape)} axes, but input {name!r} has {values[name].ndim}"
            )
    return [
        torch.zeros(tuple(shapes[name]), dtype=value.dtype, device=value.device) if name in shapes else value
        for name, value in values.items()
    ]


def _import(program: Any, *, name: str, source: str, shapes: Mapping[str, Sequence[int]] | None = None) -> Model:
    from tvm.relax.frontend.torch import from_exported_program

    inputs, own = _inputs(program), output_names(program)
    plain = of_tensors(program)
    try:
        computed = in_float32(plain) if computes_in_halves(plain) else plain
        kept, converters = keep_layers(computed)
        use_positive_indices(kept.graph_module)
        module = from_exported_program(
            kept, unwrap_unit_return_tuple=False, custom_convert_map=converters or None, run_ep_decomposition=False
        )
    except Exception as error:
        raise UnsupportedModelError(f"TVM cannot import this PyTorch model: {first_line(error)}") from error
    returned = module["main"].ret_ty
    names = _output_names(own, len(returned.fields))
    return Model(
        name=name,
        source=source,
        module=module,
        inputs=inputs,
        outputs=tuple(output_spec(n, field) for n, field in zip(names, returned.fields, strict=True)),
        fingerprint=fingerprint(program),
        reference=TorchReference(computed, inputs),
        options={"shapes": dict(shapes)} if shapes else {},
    )


def _inputs(program: Any) -> tuple[TensorSpec, ...]:
    specs = []
    for node in tensor_inputs(program):
        value = node.meta["val"]
        _check_static(node.name, value)
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype == "bfloat16":
            raise UnsupportedModelError(f"input {node.name!r} is bfloat16, which NumPy lacks: pass float32 or float16")
        specs.append(TensorSpec(node.name, tuple(value.shape), dtype, _index_limit(node)))
    return tuple(specs)


def _check_static(name: str, value: Any) -> None:
    extents = [str(extent) if isinstance(extent, int) else "?" for extent in value.shape]
    if "?" in extents:
        raise UnsupportedModelError(
            f"input {name!r} is dynamic in axis {extents.index('?')}: say --shape {name}={'x'.join(extents)} with "
            "numbers for '?', or export with static shapes"
        )


def _index_limit(node: Any) -> int | None:
    """Rows of the smallest table that this input indexes: token ids have to stay below it."""
    rows = [
        int(user.args[0].meta["val"].shape[0])
        for user in node.users
        if "embedding" in str(user.target) and len(user.args) > 1 and user.args[1] is node
    ]
    return min(rows, default=None)


def _output_names(named: list[str], count: int) -> list[str]:
    return named if len(named) == count and len(set(named)) == count else [f"output{i}" for i in range(count)]


def fingerprint(program: Any) -> str:
    """The same for the same graph and weights."""
    torch = import_torch()
    digest = hashlib.blake2b(digest_size=16)
    digest.update(str(program.graph).encode())
    for name, tensor in sorted(program.state_dict.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
