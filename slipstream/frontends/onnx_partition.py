"""Models that cannot be compiled as a whole: cut into compiled parts and parts that ONNX Runtime runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from slipstream.errors import UnsupportedModelError
from slipstream.frontends import sandbox
from slipstream.frontends.archives import write_archive
from slipstream.frontends.inputs import Array, TensorSpec
from slipstream.frontends.model import CompiledPart, OnnxPart
from slipstream.frontends.onnx_cut import Region, cut
from slipstream.frontends.onnx_files import save
from slipstream.frontends.onnx_graph import NodeRefusedError, import_graph, outputs_of, refused_at
from slipstream.frontends.onnx_support import name_node, refusal_message
from slipstream.frontends.onnx_values import ValueType, names_read

# Each node that TVM's importer fails on costs another cut and another import of what changed.
_MOST_CUTS = 32
# Attributes of the operator Constant that are no tensors.
_NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def import_parts(
    model: onnx.ModelProto,
    directory: Path,
    outputs: Sequence[str],
    feeds: Mapping[str, Array],
    refused: Mapping[int, str],
) -> tuple[tuple[CompiledPart | OnnxPart, ...], tuple[TensorSpec, ...]]:
    """The parts of a cleaned `model`, which runs on `feeds`, in the order in which they run, and its `outputs`.

    `refused` says why nodes cannot be compiled, by their positions; a node that TVM's importer fails on joins them.
    The files of ONNX parts are written to `directory`.
    """
    graph = model.graph
    reasons = {next(filter(None, graph.node[index].output)): reason for index, reason in refused.items()}
    _constants_to_weights(graph)
    _compute_outputs(graph, outputs)
    refused = {index: reasons[name] for index, node in enumerate(graph.node) for name in node.output if name in reasons}
    types = _types(model, directory, feeds)
    modules: dict[tuple[int, ...], Any] = {}
    for _ in range(_MOST_CUTS):
        regions = cut(graph, refused.keys(), types)
        if not any(region.compiled for region in regions):
            raise UnsupportedModelError(f"nothing of this model can be compiled: {refusal_message(graph, refused)}")
        try:
            for number, region in enumerate(regions):
                if region.compiled and region.nodes not in modules:
                    modules[region.nodes] = import_graph(_part_model(model, regions, number, types))
        except NodeRefusedError as error:
            refused.update(refused_at(graph, error))
            continue
        parts = _make_parts(model, regions, types, modules, refused, directory)
        return parts, tuple(types[name].spec(name) for name in outputs)
    raise UnsupportedModelError(
        f"TVM's importer fails on more than {_MOST_CUTS} nodes of this model: {refusal_message(graph, refused)}"
    )


def _types(model: onnx.ModelProto, directory: Path, feeds: Mapping[str, Array]) -> dict[str, ValueType]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        path, archive = Path(scratch, "model.onnx"), Path(scratch, "feeds.npz")
        save(copy, path)
        write_archive(archive, feeds)
        values = sandbox.call("read_types", model=str(path), feeds=str(archive))["values"]
    return {name: ValueType(kind, None if shape is None else tuple(shape)) for name, (kind, shape) in values.items()}


def _constants_to_weights(graph: onnx.GraphProto) -> None:
    """Every part that reads a constant gets a copy of it; a node belongs to one part."""
    for node in [node for node in graph.node if node.op_type == "Constant"]:
        value = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        tensor = value.get("value")
        for name, of_type in _NUMBERS.items():
            if name in value:
                tensor = onnx.numpy_helper.from_array(np.array(value[name], of_type))
        if isinstance(tensor, onnx.TensorProto):
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = node.output[0]
            graph.node.remove(node)


def _compute_outputs(graph: onnx.GraphProto, outputs: Sequence[str]) -> None:
    """Give constants that are outputs a node of their own, so that no part has to return what it does not compute."""
    for tensor in graph.initializer:
        if tensor.name not in outputs:
            continue
        output, tensor.name = tensor.name, f"{tensor.name}/value"
        for node in graph.node:
            node.input[:] = [tensor.name if name == output else name for name in node.input]
        graph.node.insert(0, onnx.helper.make_node("Identity", [tensor.name], [output]))


def _make_parts(
    model: onnx.ModelProto,
    regions: Sequence[Region],
    types: Mapping[str, ValueType],
    modules: Mapping[tuple[int, ...], Any],
    refused: Mapping[int, str],
    directory: Path,
) -> tuple[CompiledPart | OnnxPart, ...]:
    parts: list[CompiledPart | OnnxPart] = []
    for number, region in enumerate(regions):
        name, count = f"part{number}", len(region.nodes)
        reads, writes = _interface(model.graph, regions, number)
        inputs = tuple(types[value].spec(value) for value in reads)
        if region.compiled:
            module = modules[region.nodes]
            parts.append(CompiledPart(name, module, inputs, outputs_of(module, writes), count))
            continue
        reasons = tuple(
            f"{name_node(model.graph.node[index])}: {refused[index]}" for index in region.nodes if index in refused
        )
        path = directory / f"{name}.onnx"
        save(_part_model(model, regions, number, types), path)
        parts.append(OnnxPart(name, path, inputs, tuple(types[value].spec(value) for value in writes), count, reasons))
    return tuple(parts)


def _interface(graph: onnx.GraphProto, regions: Sequence[Region], number: int) -> tuple[list[str], list[str]]:
    """What a region reads of others or of the inputs, and what others or the outputs read of it."""
    weights = {tensor.name for tensor in graph.initializer}
    own = [graph.node[index] for index in regions[number].nodes]
    made = _unique(name for node in own for name in node.output if name)
    reads = _unique(name for node in own for name in names_read(node))
    others = {
        name for region in regions[number + 1 :] for index in region.nodes for name in names_read(graph.node[index])
    } | {value.name for value in graph.output}
    return [name for name in reads if name not in weights and name not in made], [n for n in made if n in others]


def _unique(names: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(names)


def _part_model(
    model: onnx.ModelProto, regions: Sequence[Region], number: int, types: Mapping[str, ValueType]
) -> onnx.ModelProto:
    graph = model.graph
    reads, writes = _interface(graph, regions, number)
    nodes = [graph.node[index] for index in regions[number].nodes]
    used = {name for node in nodes for name in names_read(node)}
    part = onnx.helper.make_graph(
        nodes,
        f"part{number}",
        [types[name].declare(name) for name in reads],
        [types[name].declare(name) for name in writes],
        [tensor for tensor in graph.initializer if tensor.name in used],
    )
    made = onnx.helper.make_model(part, opset_imports=model.opset_import, functions=model.functions)
    made.ir_version = model.ir_version
    return made
