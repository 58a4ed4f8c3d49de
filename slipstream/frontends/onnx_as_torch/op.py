"""One ONNX node as its translation sees it: inputs, attributes, and a way to emit torch calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import torch
from torch import fx
from torch.fx.node import map_aggregate

from slipstream.errors import UnsupportedModelError

# A tensor is a value known now; an fx node is one known only when the module runs.
Value: TypeAlias = torch.Tensor | fx.Node


def tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A torch copy of a numpy array; bfloat16, which numpy borrows from ml_dtypes, included."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    try:
        return torch.from_numpy(np.array(array))
    except TypeError as error:
        raise UnsupportedModelError(f"torch baseline has no type for {array.dtype} tensors") from error


def torch_dtype(elem_type: int) -> torch.dtype:
    """The torch type of an ONNX element type."""
    return tensor_of(np.empty(0, onnx.helper.tensor_dtype_to_np_dtype(elem_type))).dtype


def meta(value: Value) -> torch.Tensor:
    """A tensor with the value's shape and type; its data may be missing."""
    return value.meta["val"] if isinstance(value, fx.Node) else value


def shape(value: Value) -> tuple[int, ...]:
    return tuple(meta(value).shape)


def rank(value: Value) -> int:
    return len(shape(value))


class Emitter:
    """Grows an fx graph call by call, with the shape of everything in it."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        # By identity; the tensor is kept too, for an identity is only unique while its owner lives.
        self._buffers: dict[int, tuple[torch.Tensor, fx.Node]] = {}

    def placeholder(self, name: str, size: Sequence[int], dtype: torch.dtype) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = torch.empty(tuple(size), dtype=dtype, device="meta")
        return node

    def buffer(self, value: Value) -> fx.Node:
        """The value as a graph node; a constant becomes a buffer of the module, once."""
        if isinstance(value, fx.Node):
            return value
        if id(value) not in self._buffers:
            name = f"constant_{len(self._buffers)}"
            self.root.register_buffer(name, value.contiguous())
            node = self.graph.get_attr(name)
            node.meta["val"] = value.to("meta")
            self._buffers[id(value)] = value, node
        return self._buffers[id(value)][1]

    def emit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The call's result: computed here and now if every argument is constant, else a new graph node."""
        leaves: list[Any] = []
        map_aggregate((args, kwargs), leaves.append)
        if not any(isinstance(leaf, fx.Node) for leaf in leaves):
            return function(*args, **kwargs)
        args, kwargs = map_aggregate(
            (args, kwargs), lambda leaf: self.buffer(leaf) if isinstance(leaf, torch.Tensor) else leaf
        )
        node = self.graph.call_function(function, args, kwargs)
        # Running every call once without data gives the exact shapes later translations are resolved with.
        args, kwargs = map_aggregate(
            (args, kwargs), lambda leaf: leaf.meta["val"] if isinstance(leaf, fx.Node) else leaf
        )
        node.meta["val"] = function(*args, **kwargs)
        return node


class Op:
    """An ONNX node. `op[i]` is a required input, `op.get(i)` an optional one."""

    def __init__(
        self,
        node: onnx.NodeProto,
        opset: int,
        values: dict[str, Value],
        uses: Counter[str],
        emitter: Emitter,
    ) -> None:
        self.opset = opset
        self.emit = emitter.emit
        self.inputs: list[Value | None] = [values[name] if name else None for name in node.input]
        self.outputs = list(node.output)
        self._node = node
        self._uses = uses
        self._attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def __getitem__(self, index: int) -> Value:
        value = self.get(index)
        if value is None:
            raise self.unsupported(f"input {index} is missing")
        return value

    def get(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def attr(self, name: str, default: Any = None) -> Any:
        value = self._attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def const(self, index: int) -> torch.Tensor | None:
        """An optional input whose value must be known by now."""
        value = self.get(index)
        if isinstance(value, fx.Node):
            raise self.unsupported(f"input {index} is not constant")
        return value

    def ints(self, name: str, index: int) -> list[int] | None:
        """Integers that older operator versions take as an attribute and newer ones as an input."""
        if name in self._attributes:
            return list(self._attributes[name])
        value = self.const(index)
        return None if value is None else [int(item) for item in value.flatten().tolist()]

    def number(self, name: str, index: int, default: Any = None) -> Any:
        """A number that older operator versions take as an attribute and newer ones as an input."""
        if name in self._attributes:
            return self._attributes[name]
        value = self.const(index)
        return default if value is None else value.item()

    def axis(self, default: int) -> int:
        """The attribute `axis`, counted from the front of the first input."""
        return int(self.attr("axis", default)) % max(rank(self[0]), 1)

    def is_used(self, output: int) -> bool:
        return output < len(self.outputs) and self._uses[self.outputs[output]] > 0

    def is_sole_user(self, index: int) -> bool:
        """Whether nothing but this node reads the input."""
        return self._uses[self._node.input[index]] == 1

    def unsupported(self, reason: str) -> UnsupportedModelError:
        """The error to raise when this node asks for something its translation does not cover."""
        name = self._node.name or (self.outputs[0] if self.outputs else "")
        return UnsupportedModelError(f"torch baseline cannot translate {self._node.op_type} '{name}': {reason}")


Translation: TypeAlias = Callable[[Op], Value | Sequence[Value]]
