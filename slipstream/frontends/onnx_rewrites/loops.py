"""Loop and Scan of a known number of iterations, written out one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from slipstream.frontends.onnx_rewrites.builder import Builder, Rewrite, attributes_of, refusal
from slipstream.frontends.onnx_rewrites.renaming import rename

_MOST_NODES = 20_000
# Constants of more elements than this are left for ONNX Runtime to fold.
_LARGEST_FOLDED = 64


def _loop(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    body = attributes_of(node)["body"]
    trips = int(g.required(node, 0, "its trip count").reshape(-1)[0]) if node.input[0] else None
    condition = node.input[1] if len(node.input) > 1 else ""
    goes_on = bool(g.required(node, 1, "its condition").reshape(-1)[0]) if condition else True
    carried = list(node.input[2:])
    copies = _Copies(g, node, body)
    rows: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
    current = condition or g.constant(True)
    iteration = 0
    while goes_on and (trips is None or iteration < trips):
        copies.check_size(iteration)
        made = copies.add([g.constant(iteration, np.int64), current, *carried])
        current, carried = made[0], made[1 : 1 + len(carried)]
        for row, result in zip(rows, made[1 + len(carried) :], strict=True):
            row.append(g.unsqueeze(result, 0))
        known = g.value(current)
        if known is None:
            raise refusal(node, "whether it goes on depends on the data")
        goes_on, iteration = bool(known.reshape(-1)[0]), iteration + 1
    if rows and not iteration:
        raise refusal(node, "it has no iteration, so that the shapes of its outputs are not known")
    return [*carried, *(g.op("Concat", *row, axis=0) if len(row) > 1 else row[0] for row in rows)]


def _scan(g: Builder, node: onnx.NodeProto) -> Sequence[str]:
    attributes = attributes_of(node)
    body, scanned = attributes["body"], attributes["num_scan_inputs"]
    if g.opset < 9:
        raise refusal(node, "Scan of opset 8 is not supported: export the model with a newer one")
    states = list(node.input[: len(node.input) - scanned])
    sources = list(node.input[len(states) :])
    outputs = len(body.output) - len(states)
    in_axes = list(attributes.get("scan_input_axes", [0] * scanned))
    in_backwards = list(attributes.get("scan_input_directions", [0] * scanned))
    out_axes = list(attributes.get("scan_output_axes", [0] * outputs))
    out_backwards = list(attributes.get("scan_output_directions", [0] * outputs))
    steps = g.static_shape(node, len(states))[in_axes[0]]
    copies = _Copies(g, node, body)
    rows: list[list[str]] = [[] for _ in range(outputs)]
    for step in range(steps):
        copies.check_size(step)
        places = [g.constant(steps - 1 - step if back else step, np.int64) for back in in_backwards]
        slices = [g.op("Gather", x, at, axis=axis) for x, at, axis in zip(sources, places, in_axes, strict=True)]
        made = copies.add([*states, *slices])
        states = made[: len(states)]
        for row, result, axis in zip(rows, made[len(states) :], out_axes, strict=True):
            row.append(g.unsqueeze(result, axis))
    ordered = [row[::-1] if back else row for row, back in zip(rows, out_backwards, strict=True)]
    return [*states, *(g.op("Concat", *row, axis=axis) for row, axis in zip(ordered, out_axes, strict=True))]


class _Copies:
    """Adds copies of a body to the main graph, each with names of its own; what is constant in them is folded."""

    def __init__(self, g: Builder, node: onnx.NodeProto, body: onnx.GraphProto) -> None:
        self._g, self._node, self._body = g, node, body
        self._shared = {tensor.name: g.constant(onnx.numpy_helper.to_array(tensor)) for tensor in body.initializer}
        self._count = 0

    def check_size(self, iterations: int) -> None:
        if iterations * len(self._body.node) > _MOST_NODES:
            raise refusal(self._node, f"it would be written out as more than {_MOST_NODES} nodes")

    def add(self, arguments: Sequence[str]) -> list[str]:
        """The names of the body's outputs for these inputs."""
        self._count += 1
        prefix = f"slipstream.{self._node.output[0] or self._node.name}.{self._count}."
        names = {**self._shared, **dict(zip((v.name for v in self._body.input), arguments, strict=True))}
        for original in self._body.node:
            names.update({output: prefix + output for output in original.output if output})
            copy = onnx.NodeProto()
            copy.CopyFrom(original)
            rename(copy, names)
            folded = self._folded(copy)
            if folded is None:
                self._g.nodes.append(copy)
            else:
                names.update(zip(original.output, folded, strict=True))
        return [names.get(output.name, output.name) for output in self._body.output]

    def _folded(self, node: onnx.NodeProto) -> list[str] | None:
        """Constants in the place of the node's outputs, if its inputs are small constants."""
        values = {name: self._g.value(name) for name in node.input if name}
        if any(value is None or value.size > _LARGEST_FOLDED for value in values.values()):
            return None
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            return None
        inputs = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in values.items()
            if value is not None
        ]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output]
        graph = onnx.helper.make_graph([node], "folded", inputs, outputs)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self._g.opset)])
        try:
            results = ReferenceEvaluator(model).run(None, values)
        except Exception:  # whatever the evaluator lacks is left for ONNX Runtime
            return None
        return [self._g.constant(result) for result in results]


REWRITES: dict[tuple[str, str], Rewrite] = {("", "Loop"): _loop, ("", "Scan"): _scan}
