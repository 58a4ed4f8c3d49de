"""Explicit padding in front of a convolution becomes the convolution's own.

ONNX Runtime's fusion would do this, but it also merges zeros into a MaxPool, which pads by minus infinity.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx

from slipstream.frontends.onnx_values import names_read


def merge_padding(graph: onnx.GraphProto) -> None:
    """Merge each Pad by zeros along spatial axes into the one Conv that reads it."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    producers = {node.output[0]: node for node in graph.node if node.op_type == "Pad"}
    readers = Counter(name for node in graph.node for name in names_read(node))
    readers.update(output.name for output in graph.output)
    for conv in list(graph.node):
        pad = producers.get(conv.input[0]) if conv.op_type == "Conv" else None
        if pad is None or readers[pad.output[0]] != 1 or not _pads_itself(conv):
            continue
        amounts = _zero_padding(pad, constants)
        if amounts is None:
            continue
        own = _attribute(conv, "pads") or [0] * len(amounts)
        _set_ints(conv, "pads", [a + b for a, b in zip(own, amounts, strict=True)])
        conv.input[0] = pad.input[0]
        graph.node.remove(pad)


def _zero_padding(pad: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> list[int] | None:
    """Begins then ends of the spatial axes; None if this is any other kind of padding."""
    names = [*pad.input, "", "", ""][1:4]
    mode = _attribute(pad, "mode")
    if mode not in (None, b"constant") or names[2]:
        return None
    if names[0]:
        if names[0] not in constants or (names[1] and names[1] not in constants):
            return None
        amounts = [int(a) for a in onnx.numpy_helper.to_array(constants[names[0]])]
        value = float(onnx.numpy_helper.to_array(constants[names[1]]).reshape(-1)[0]) if names[1] else 0.0
    else:
        amounts, value = list(_attribute(pad, "pads") or []), float(_attribute(pad, "value") or 0.0)
    rank = len(amounts) // 2
    spatial = amounts[2:rank] + amounts[rank + 2 :]
    outside = amounts[:2] + amounts[rank : rank + 2]
    return spatial if value == 0.0 and not any(outside) and min(amounts, default=-1) >= 0 else None


def _pads_itself(conv: onnx.NodeProto) -> bool:
    return _attribute(conv, "auto_pad") in (None, b"NOTSET", b"VALID")


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    found = next((attribute for attribute in node.attribute if attribute.name == name), None)
    return None if found is None else onnx.helper.get_attribute_value(found)


def _set_ints(node: onnx.NodeProto, name: str, values: list[int]) -> None:
    for attribute in [a for a in node.attribute if a.name in (name, "auto_pad")]:
        node.attribute.remove(attribute)
    node.attribute.append(onnx.helper.make_attribute(name, values))
