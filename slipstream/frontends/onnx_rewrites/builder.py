"""What a rewriting of one ONNX node reads and writes: its inputs' types and constants, and new standard nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from slipstream.errors import UnsupportedModelError

Array = np.ndarray[Any, Any]
# Constants of this many elements may be shapes; larger ones only have one.
_SMALL = 64
# Operators that ONNX Runtime has in versions in which ONNX lacks them.
_OF_EVERY_OPSET = ("LayerNormalization",)


class Builder:
    """Collects standard nodes of the model's opset that compute the same as one node.

    A method for an operator returns the name of its result. Functions that rewrite a node return the names of what
    takes the place of its outputs.
    """

    def __init__(self, model: onnx.ModelProto, directory: Path) -> None:
        self.graph = model.graph
        self.versions = {opset.domain.removeprefix("ai.onnx"): opset.version for opset in model.opset_import}
        self.opset = self.versions.get("", 17)
        self.nodes: list[onnx.NodeProto] = []
        # Nodes before the present one whose results may be of unknown shape yet.
        self.before: list[onnx.NodeProto] = []
        self._directory = str(directory)
        self._constants = {tensor.name: tensor for tensor in self.graph.initializer}
        self._model = model
        self._count = 0

    @cached_property
    def _types(self) -> dict[str, Any]:
        return _types(self._model)

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node: the name of its result, or a list of `outputs` names. Attributes that are None are left out."""
        made = [self._new_name(kind) for _ in range(outputs)]
        given = {name: value for name, value in attributes.items() if value is not None}
        if not domain and not _exists(kind, len(inputs), given, self.opset):
            raise UnsupportedModelError(
                f"what replaces it has a {kind} that opset {self.opset} lacks: export with a newer one"
            )
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), made, domain=domain, **given))
        return made[0] if outputs == 1 else made

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = self._new_name("constant")
        tensor = onnx.numpy_helper.from_array(np.asarray(value, dtype), name)
        self.graph.initializer.append(tensor)
        self._constants[name] = tensor
        return name

    def value(self, name: str) -> Array | None:
        """The value of a constant; None if it is computed, or absent."""
        tensor = self._constants.get(name)
        return None if tensor is None else onnx.numpy_helper.to_array(tensor, self._directory)

    def required(self, node: onnx.NodeProto, position: int, what: str) -> Array:
        """The value of an input that has to be constant."""
        found = self.value(node.input[position])
        if found is None:
            raise refusal(node, f"{what} depends on the data: bind the input it comes from with --constant")
        return found

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The static shape of a value, if it is known."""
        if name in self._constants:
            return tuple(self._constants[name].dims)
        found = _extents(self._types.get(name))
        if found is None and self.before:
            self._infer()
            found = _extents(self._types.get(name))
        return found

    def _infer(self) -> None:
        """Infer the types of what the nodes before this one compute."""
        nodes = [_with_known_shapes(node) for node in self.before]
        self.before = []
        made = {output for node in nodes for output in node.output}
        given = {name for node in nodes for name in node.input if name} - made
        small = [self._constants[name] for name in given if self._is_small(name)]
        inputs = [onnx.helper.make_value_info(name, self.type_of(name)) for name in given if not self._is_small(name)]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in made if name]
        graph = onnx.helper.make_graph(nodes, "before", inputs, outputs, small)
        versions = {domain: number for domain, number in self.versions.items() if domain}
        opsets = [onnx.helper.make_opsetid(*one) for one in [("", self.opset), *versions.items()]]
        model = onnx.helper.make_model(graph, opset_imports=opsets)
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception:  # an operator that ONNX does not define
            return
        for value in [*inferred.graph.output, *inferred.graph.value_info]:
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
                self._types[value.name] = value.type.tensor_type

    def _is_small(self, name: str) -> bool:
        tensor = self._constants.get(name)
        return tensor is not None and np.prod(tensor.dims, initial=1) <= _SMALL and not tensor.external_data

    def static_shape(self, node: onnx.NodeProto, position: int = 0) -> tuple[int, ...]:
        found = self.shape(node.input[position])
        if found is None:
            raise refusal(node, f"the shape of its input {position} is not known before the run")
        return found

    def dtype(self, name: str) -> Any:
        """NumPy's type of a value; float32 if it is not known."""
        type_ = self._constants[name].data_type if name in self._constants else 0
        if not type_ and name in self._types:
            type_ = self._types[name].elem_type
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(type_ or onnx.TensorProto.FLOAT))

    def type_of(self, name: str) -> onnx.TypeProto:
        """ONNX's type of a value; an empty one if it is absent or not known."""
        type_ = onnx.TypeProto()
        if name in self._constants:
            tensor = self._constants[name]
            return onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        if name in self._types:
            type_.tensor_type.CopyFrom(self._types[name])
        return type_

    def cast(self, value: str, dtype: Any) -> str:
        return str(self.op("Cast", value, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))

    def reshape(self, value: str, *shape: int) -> str:
        return str(self.op("Reshape", value, self.constant(shape, np.int64)))

    def transpose(self, value: str, *axes: int) -> str:
        return str(self.op("Transpose", value, perm=list(axes)))

    def slice(self, value: str, axis: int, begin: int, end: int) -> str:
        if self.opset < 10:
            return str(self.op("Slice", value, starts=[begin], ends=[end], axes=[axis]))
        return str(self.op("Slice", value, *(self.constant([n], np.int64) for n in (begin, end, axis))))

    def reduce(self, kind: str, value: str, axes: Sequence[int], keepdims: bool = True) -> str:
        first = 13 if kind == "ReduceSum" else 18
        if self.opset >= first:
            return str(self.op(kind, value, self.constant(axes, np.int64), keepdims=int(keepdims)))
        return str(self.op(kind, value, axes=list(axes), keepdims=int(keepdims)))

    def unsqueeze(self, value: str, *axes: int) -> str:
        if self.opset >= 13:
            return str(self.op("Unsqueeze", value, self.constant(axes, np.int64)))
        return str(self.op("Unsqueeze", value, axes=list(axes)))

    def round(self, value: str) -> str:
        """To the nearest whole number, halves to the even one."""
        if self.opset >= 11:
            return str(self.op("Round", value))
        above = self.op("Floor", self.op("Add", value, self.constant(0.5, np.float32)))
        two = self.constant(2.0, np.float32)
        odd = self.op("Sub", above, self.op("Mul", two, self.op("Floor", self.op("Div", above, two))))
        # Equal is for integers in these opsets.
        tie = self.op("Not", self.op("Less", self.op("Sub", above, value), self.constant(0.5, np.float32)))
        half = self.cast(tie, np.float32)
        return str(self.op("Sub", above, self.op("Mul", odd, half)))

    def scalar(self, number: float, like: str) -> str:
        """A constant of the type of `like`."""
        return self.constant(number, self.dtype(like))

    def _new_name(self, kind: str) -> str:
        self._count += 1
        return f"slipstream.{len(self.graph.node)}.{self._count}.{kind}"


Rewrite = Callable[[Builder, onnx.NodeProto], Sequence[str] | None]


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The node's attributes by name, strings as text."""
    found = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def inputs_of(node: onnx.NodeProto, count: int) -> list[str]:
    """The first `count` inputs, an absent one being empty."""
    return [*node.input, *[""] * count][:count]


def refusal(node: onnx.NodeProto, why: str) -> UnsupportedModelError:
    name = f"{node.op_type} node {node.name!r}" if node.name else f"{node.op_type} node that makes {node.output[0]!r}"
    return UnsupportedModelError(f"the {name} cannot be compiled: {why}")


def _exists(kind: str, inputs: int, attributes: Collection[str], opset: int) -> bool:
    """Whether this version of ONNX's operators has the operator in such a form."""
    if kind in _OF_EVERY_OPSET:
        return True
    try:
        schema = onnx.defs.get_schema(kind, opset)
    except onnx.defs.SchemaError:
        return False
    return bool(inputs <= schema.max_input and schema.attributes.keys() >= set(attributes))


def _with_known_shapes(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node of ONNX's with results of the same shapes, in the place of one of ONNX Runtime's own."""
    if node.op_type == "LayerNormalization":  # ONNX's since opset 17
        return onnx.helper.make_node("Identity", node.input[:1], node.output[:1])
    if node.op_type == "DynamicQuantizeLSTM":
        lstm = onnx.helper.make_node("LSTM", node.input[:3], node.output)
        lstm.attribute.extend(each for each in node.attribute if each.name in ("hidden_size", "direction"))
        return lstm
    return node


def _extents(type_: Any) -> tuple[int, ...] | None:
    if type_ is None or not type_.HasField("shape"):
        return None
    extents = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in type_.shape.dim)
    return None if -1 in extents else extents


def _types(model: onnx.ModelProto) -> dict[str, Any]:
    """Tensor types by name: what the file says (ONNX Runtime writes them all), else what ONNX infers."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    known = {value.name: value.type.tensor_type for value in values if value.type.HasField("tensor_type")}
    needed = {name for node in model.graph.node for name in node.input if name}
    named = set(known) | {tensor.name for tensor in model.graph.initializer}
    if needed <= named and all(type_.HasField("shape") for type_ in known.values()):
        return known
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # a model too large for one message, or with an operator ONNX does not define
        return known
    found = {value.name: value.type.tensor_type for value in inferred.graph.value_info}
    return {**found, **known}
