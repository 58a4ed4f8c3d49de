"""Types and shapes of all values of an ONNX graph, and which values a node reads. Imported without TVM."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from slipstream.frontends import onnx_run
from slipstream.frontends.archives import read_archive
from slipstream.frontends.inputs import TensorSpec
from slipstream.frontends.onnx_support import DATA_DEPENDENT
from slipstream.frontends.output_files import write_outputs

# Names of element types in ONNX Runtime that are not NumPy's.
_ELEMENTS = {"float": "float32", "double": "float64"}
# Types of elements that compiled code has.
_COMPILED = frozenset(
    {"bool", "bfloat16", *(f"float{bits}" for bits in (16, 32, 64))}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
# Operators whose results have sizes that are values of their inputs from the second on, or of all.
_SIZED_BY_ALL = frozenset(
    {"ConstantOfShape", "Range", "BlackmanWindow", "HammingWindow", "HannWindow", *DATA_DEPENDENT}
)
_SIZED_BY_VALUES = _SIZED_BY_ALL | {
    *("AffineGrid", "CenterCropPad", "Col2Im", "Crop", "DFT", "Expand", "MaxUnpool", "MelWeightMatrix"),
    *("OneHot", "Pad", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Reshape", "Resize", "STFT", "SequenceAt", "Slice"),
    *("Split", "SplitToSequence", "Squeeze", "StringSplit", "Tile", "TopK", "Unsqueeze", "Upsample"),
}


@dataclass(frozen=True)
class ValueType:
    """A value's type in ONNX Runtime's words, such as `tensor(float)`; a dimension that depends on the data is -1.

    `shape` is None where nothing is known of it.
    """

    kind: str
    shape: tuple[int, ...] | None

    @property
    def dtype(self) -> str:
        """NumPy's name of a tensor's elements; the type itself for what is no tensor."""
        element = re.fullmatch(r"tensor\((\w+)\)", self.kind)
        return _ELEMENTS.get(element[1], element[1]) if element else self.kind

    @property
    def is_static(self) -> bool:
        """Whether it is a tensor of numbers with a shape that does not depend on the data."""
        return self.dtype in _COMPILED and self.shape is not None and -1 not in self.shape

    def spec(self, name: str) -> TensorSpec:
        return TensorSpec(name, (-1,) if self.shape is None else self.shape, self.dtype)

    def declare(self, name: str) -> onnx.ValueInfoProto:
        """The value as an input of a graph."""
        return onnx.helper.make_value_info(name, _type_proto(self.kind, self.shape))


def _type_proto(kind: str, shape: tuple[int, ...] | None = None) -> onnx.TypeProto:
    outer, _, inner = kind.removesuffix(")").partition("(")
    if outer == "seq":
        return onnx.helper.make_sequence_type_proto(_type_proto(inner))
    if outer == "optional":
        return onnx.helper.make_optional_type_proto(_type_proto(inner))
    if outer == "map":
        key, _, value = inner.partition(",")
        return onnx.helper.make_map_type_proto(_element(key), _type_proto(value))
    dims = None if shape is None else [None if extent < 0 else extent for extent in shape]
    return onnx.helper.make_tensor_type_proto(_element(inner), dims)


def _element(name: str) -> int:
    return int(onnx.TensorProto.DataType.Value(name.upper()))


def read_types(model: str, feeds: str) -> dict[str, Any]:
    """Job: the type and shape of every value in the graph of the file `model`, with inputs in the archive `feeds`.

    Types are ONNX Runtime's, which has operators that the `onnx` package has not. It reports a scalar as it does a
    value of unknown rank: there the `onnx` package decides. What neither can tell, as they cannot for most of
    `ai.onnx.ml`, a run shows, if it cannot depend on the values of the inputs.
    """
    proto = onnx.load(model, load_external_data=False)
    inferred = {value.name: value for value in _inferred(proto)}
    session = _session(model, proto, [name for node in proto.graph.node for name in node.output if name])
    found: dict[str, list[Any]] = {}
    for value in (*session.get_inputs(), *session.get_outputs()):
        shape: list[int] | None = [extent if isinstance(extent, int) else -1 for extent in value.shape]
        known = inferred.get(value.name)
        if not shape or -1 in shape:
            own = _shape(known) if known is not None else None
            shape = own if own is not None and (not shape or len(own) == len(shape)) else shape or None
        found[value.name] = [value.type, shape]
    if any(shape is None or -1 in shape for _, shape in found.values()):
        results = onnx_run.run(session, read_archive(feeds))
        seen = zip((value.name for value in session.get_outputs()), results, strict=True)
        _take_seen_shapes(proto.graph, found, {n: list(a.shape) for n, a in seen if isinstance(a, np.ndarray)})
    return {"values": found}


def run_values(model: str, feeds: Sequence[str], results: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Job: run `model` on each `feeds` archive (.npz) and write the values of these `names` to `results`."""
    session = _session(model, onnx.load(model, load_external_data=False), names)
    for feed, result in zip(feeds, results, strict=True):
        write_outputs(result, session.run(list(names), read_archive(feed)))
    return {}


def _session(model: str, proto: onnx.ModelProto, names: Sequence[str]) -> Any:
    """The model of a file and its message, which is changed, with these values as outputs beside its own."""
    given = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in given)
    path = Path(model).with_name("more_outputs.onnx")
    path.write_bytes(proto.SerializeToString())
    try:
        return onnx_run.session(path, optimise=False)
    finally:
        path.unlink()


def _take_seen_shapes(graph: onnx.GraphProto, found: dict[str, list[Any]], seen: dict[str, list[int]]) -> None:
    """Fill in the shapes of results whose size cannot depend on the values of inputs."""
    constants = {tensor.name for tensor in graph.initializer}

    def is_static(name: str) -> bool:
        return name in constants or ValueType(found[name][0], found[name][1] and tuple(found[name][1])).is_static

    for node in graph.node:
        if constants.issuperset(names_of_sizes(node)) and all(map(is_static, filter(None, node.input))):
            for name in filter(None, node.output):
                if name in seen:
                    found[name][1] = seen[name]


def _inferred(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    try:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except Exception:  # operators of other domains, or more than a message can hold: ONNX Runtime has to do
        return
    yield from (*graph.input, *graph.value_info, *graph.output)


def _shape(value: onnx.ValueInfoProto) -> list[int] | None:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]


def names_of_sizes(node: onnx.NodeProto) -> list[str]:
    """What the shapes of the node's results follow from by its values; from everything else it reads, by its shape."""
    if node.op_type in _SIZED_BY_ALL or any(attribute.HasField("g") for attribute in node.attribute):
        return names_read(node)
    return [name for name in node.input[1:] if name] if node.op_type in _SIZED_BY_VALUES else []


def names_read(node: onnx.NodeProto) -> list[str]:
    """What the node reads: its inputs, and what the graphs inside it read from around them."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            for inner in graph.node:
                names += [name for name in names_read(inner) if name not in own]
                own.update(inner.output)
            names += [value.name for value in graph.output if value.name not in own]
    return names


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes that no output depends on, which ONNX Runtime leaves in a model."""
    needed = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(names_read(node))
    for node in [node for node in graph.node if not needed.intersection(node.output)]:
        graph.node.remove(node)
