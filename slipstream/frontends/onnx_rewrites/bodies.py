"""Operators that ONNX defines by a body of simpler ones, replaced by that body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite
from slipstream.frontends.onnx_rewrites.renaming import rename

# TVM has no converter for these, or one for an operator of the same name in another domain.
_EXPANDED = (
    "Attention",
    "CausalConvWithState",
    "Celu",
    "CenterCropPad",
    "FlexAttention",
    "LinearAttention",
    "NegativeLogLikelihoodLoss",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
    "Swish",
)


def _expand(g: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """The results of the node's body; None if ONNX defines none for it."""
    body = _body(g, node)
    if body is None:
        return None
    prefix = f"slipstream.{node.output[0]}."
    given = [*node.input, *[""] * len(body.input)]
    names = dict(zip(body.input, given, strict=False))
    attributes = {attribute.name: attribute for attribute in node.attribute}
    for original in body.node:
        names.update({output: prefix + output for output in original.output if output})
        copy = onnx.NodeProto()
        copy.CopyFrom(original)
        rename(copy, names)
        _fill_in(copy, attributes)
        g.nodes.append(copy)
    return [names.get(output, "") for output in body.output]


def _body(g: Builder, node: onnx.NodeProto) -> onnx.FunctionProto | None:
    """The function that defines the node, with the schema's defaults for attributes that the node lacks."""
    version = g.versions.get(node.domain, g.opset)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:  # newer than the opset, which was lowered to what ONNX Runtime reads
        schema = onnx.defs.get_schema(node.op_type, node.domain)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name and name not in {own.name for own in node.attribute}:
            node.attribute.append(attribute.default_value)
    if schema.has_function:
        fitting = [number for number in schema.function_opset_versions if number <= version]
        text = schema.get_function_with_opset_version(max(fitting, default=schema.function_opset_versions[0]))
    elif schema.has_context_dependent_function:
        numbers = schema.context_dependent_function_opset_versions
        fitting = [number for number in numbers if number <= version]
        types = [g.type_of(name).SerializeToString() for name in node.input]
        text = schema.get_context_dependent_function_with_opset_version(
            max(fitting, default=numbers[0]), node.SerializeToString(), types
        )
    else:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return body


def _fill_in(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> None:
    """Replace references to the function's attributes by their values; absent ones are left out."""
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in attributes:
                continue
            value = onnx.AttributeProto()
            value.CopyFrom(attributes[attribute.ref_attr_name])
            value.name = attribute.name
            kept.append(value)
            continue
        for inner in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
            for each in inner.node:
                _fill_in(each, attributes)
        kept.append(attribute)
    del node.attribute[:]
    node.attribute.extend(kept)


REWRITES: dict[tuple[str, str], Rewrite] = {
    (domain, name): _expand for name in _EXPANDED for domain in ("", "ai.onnx.preview")
}
