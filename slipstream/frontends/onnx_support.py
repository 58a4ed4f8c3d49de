"""Which nodes of an ONNX graph can be compiled, as far as their operators say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import onnx

STANDARD_DOMAINS = ("", "ai.onnx")
# Operators of other domains with a converter; the rest of them is rewritten before the import, or refused.
_IMPORTED = {("com.microsoft", "DynamicQuantizeLSTM")}
# TVM gives these results of the largest possible size instead of the size the data determines.
DATA_DEPENDENT = ("NonZero", "NonMaxSuppression", "Unique", "Compress")
_MOST_LISTED = 5


def refusals(
    graph: onnx.GraphProto, known: Collection[str], rewritten: Collection[tuple[str, str]] = ()
) -> dict[int, str]:
    """Why nodes cannot be compiled, by their positions; `known` operators have a converter, operators `rewritten`, by
    domain and name, are replaced before they need one."""
    reasons = {}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types |= {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    empty = _empty_tensors(graph)
    for index, node in enumerate(graph.node):
        found = [reason for inner in _with_inner(node) if (reason := _refusal(inner, known, rewritten))]
        found += [f"{node.op_type} has tensors of type {name}" for name in _small_types(node, types)]
        if not empty.isdisjoint(node.input):
            found.append(f"{node.op_type} reads a tensor without elements")
            # What is made of it may have none either; a sum of nothing is a number.
            empty.update(() if node.op_type.startswith(("Reduce", "Shape", "Size")) else node.output)
        if found:
            reasons[index] = found[0]
    return reasons


def _empty_tensors(graph: onnx.GraphProto) -> set[str]:
    """Inputs with an extent of 0. An empty constant is an argument that is left out, or joins something."""
    found = set()
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in dims):
            found.add(value.name)
    return found


def _small_types(node: onnx.NodeProto, types: Mapping[str, int]) -> list[str]:
    """Floats of 8 bits and types of fewer that the node has, which TVM computes differently or not at all."""
    own = {types[name] for name in (*node.input, *node.output) if name in types}
    own |= {attribute.i for attribute in node.attribute if node.op_type == "Cast" and attribute.name == "to"}
    names = [onnx.TensorProto.DataType.Name(type_).lower() for type_ in sorted(own)]
    return [name for name in names if name.startswith("float8") or name.endswith(("int4", "int2", "float4e2m1"))]


def _refusal(node: onnx.NodeProto, known: Collection[str], rewritten: Collection[tuple[str, str]]) -> str | None:
    if (node.domain.removeprefix("ai.onnx"), node.op_type) in rewritten:
        return None
    if node.domain not in STANDARD_DOMAINS and (node.domain, node.op_type) not in _IMPORTED:
        return f"TVM cannot import {node.domain}.{node.op_type}"
    if node.op_type in DATA_DEPENDENT:
        return f"the size of a result of {node.op_type} depends on the data"
    if node.op_type in known or node.op_type in ("If", "Constant"):
        return None
    return f"TVM cannot import {node.op_type}"


def _with_inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The node, and every node inside its control flow."""
    yield node
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                yield from _with_inner(inner)


def name_node(node: onnx.NodeProto) -> str:
    """The node in an error message: its name, or what it computes if it has none."""
    return f"node {node.name!r}" if node.name else f"the node of {', '.join(map(repr, filter(None, node.output)))}"


def refusal_message(graph: onnx.GraphProto, reasons: dict[int, str]) -> str:
    """Why nodes cannot be compiled, and which, in one line."""
    nodes: dict[str, list[str]] = {}
    for index, reason in reasons.items():
        nodes.setdefault(reason, []).append(name_node(graph.node[index]))
    return "; ".join(f"{reason} ({_few(names)})" for reason, names in nodes.items())


def _few(names: list[str]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
