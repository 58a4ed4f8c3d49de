"""Walks an ONNX graph and assembles the torch module."""

from __future__ import annotations

import re
from collections import Counter

import onnx
import torch
from torch import fx

from slipstream.errors import ShapeError, UnsupportedModelError, first_line
from slipstream.frontends.onnx_as_torch.op import Emitter, Op, Value, tensor_of, torch_dtype
from slipstream.frontends.onnx_as_torch.table import TABLE


def as_torch(model: onnx.ModelProto) -> torch.nn.Module:
    """The model as a torch module in eval mode.

    `forward` takes the graph's inputs in order (without those that have an initialiser) and returns a tuple
    of its outputs. Weights are buffers, so `.to(device)` moves them; `torch.compile` sees one unbroken graph.

    Input shapes must be static (ShapeError). UnsupportedModelError names all operators without a translation
    at once, or the one node that uses a translated operator in a way torch cannot express.
    """
    _check_operators(model)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    uses = Counter(name for node in model.graph.node for name in node.input)
    uses.update(output.name for output in model.graph.output)

    emitter = Emitter()
    values: dict[str, Value] = {
        item.name: tensor_of(onnx.numpy_helper.to_array(item)) for item in model.graph.initializer
    }
    for item in model.graph.input:
        if item.name not in values:
            values[item.name] = _placeholder(emitter, item)
    for node in model.graph.node:
        op = Op(node, opset, values, uses, emitter)
        try:
            result = TABLE[node.op_type](op)
        except (RuntimeError, TypeError) as error:  # torch has the function, but not for these arguments
            raise op.unsupported(first_line(error)) from error
        results = result if isinstance(result, list | tuple) else [result]
        values.update(zip(node.output, results, strict=False))
    emitter.graph.output(tuple(emitter.buffer(values[output.name]) for output in model.graph.output))
    emitter.graph.eliminate_dead_code()
    return fx.GraphModule(emitter.root, emitter.graph, class_name="OnnxModel").eval()


def _check_operators(model: onnx.ModelProto) -> None:
    names = (
        node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}" for node in model.graph.node
    )
    missing = Counter(name for name in names if name not in TABLE)
    if missing:
        listing = ", ".join(f"{name} ({n} node{'s' if n > 1 else ''})" for name, n in sorted(missing.items()))
        raise UnsupportedModelError(f"torch baseline has no translation for: {listing}")


def _placeholder(emitter: Emitter, item: onnx.ValueInfoProto) -> fx.Node:
    tensor = item.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        raise ShapeError(f"torch baseline needs a static shape for input '{item.name}'")
    name = re.sub(r"\W", "_", f"input_{item.name}")
    return emitter.placeholder(name, [dim.dim_value for dim in tensor.shape.dim], torch_dtype(tensor.elem_type))
