"""A small builder of ONNX graphs that draws its own weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

Activation = Literal["relu", "relu6", "silu", "none"]
Pair = tuple[int, int]
Pads = tuple[int, int, int, int]
Array = NDArray[np.float32] | NDArray[np.int64]

OPSET = 17
IR_VERSION = 8

_BLOCK = 1 << 20

# Weights of standard deviation gain / sqrt(fan-in) keep the mean square of the activations at about 1 from
# layer to layer (He et al., 2015, for ReLU; found by experiment for SiLU).
RELU_GAIN = math.sqrt(2.0)
_GAIN = {"relu": RELU_GAIN, "relu6": RELU_GAIN, "silu": 1.5, "none": 1.0}


@dataclass(frozen=True)
class Value:
    """A tensor of the graph under construction; `features` is the size of its channel or embedding axis."""

    name: str
    features: int


class Graph:
    """Builds one `onnx.ModelProto`, available as `model` and valid once an output is declared.

    Learned tensors become initializers and all other constants `Constant` nodes, as in an exported model.
    Equal seeds and equal calls give equal bytes.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.model = helper.make_model(
            helper.make_graph([], name, [], []),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="slipstream.zoo",
        )
        self._bits = np.random.PCG64(seed)
        self._counts: dict[str, int] = {}

    # Borders

    def image(self, size: int) -> Value:
        """The input `input` of a vision model: [batch, 3, size, size]."""
        return self.input("input", ("batch", 3, size, size), features=3)

    def input(
        self, name: str, shape: Sequence[int | str], *, features: int = 1, dtype: int = TensorProto.FLOAT
    ) -> Value:
        self.model.graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
        return Value(name, features)

    def output(self, value: Value, name: str, shape: Sequence[int | str]) -> None:
        """Declares `value` a float32 output called `name`, renaming it wherever it is used."""
        for node in self.model.graph.node:
            for names in (node.input, node.output):
                for index, used in enumerate(names):
                    if used == value.name:
                        names[index] = name
        self.model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    # Nodes

    def node(
        self,
        op: str,
        *inputs: Value | str,
        features: int | None = None,
        name: str | None = None,
        **attributes: object,
    ) -> Value:
        """Appends a node of one output, which by default has the features of the first input."""
        name = name or self._unique(op)
        self._append(op, name, inputs, [name], attributes)
        return Value(name, _features(inputs[0]) if features is None else features)

    def split(self, x: Value, parts: int) -> list[Value]:
        """Equal parts of `x` along its last axis."""
        name = self._unique("Split")
        outputs = [f"{name}.{index}" for index in range(parts)]
        self._append("Split", name, (x,), outputs, {"axis": -1})
        return [Value(output, x.features // parts) for output in outputs]

    def constant(self, array: Array) -> str:
        name = self._unique("Constant")
        little = array.astype(array.dtype.newbyteorder("<"))
        kind = TensorProto.INT64 if array.dtype == np.int64 else TensorProto.FLOAT
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape, raw_data=little.tobytes())
        self._append("Constant", name, (), [name], {"value": tensor})
        return name

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    # Weights

    def weight(self, name: str, shape: Sequence[int], *, fan_in: int, gain: float = 1.0) -> str:
        """Weights of mean 0 and standard deviation gain / sqrt(fan_in)."""
        bound = gain * math.sqrt(3.0 / fan_in)
        return self.uniform(name, shape, -bound, bound)

    def uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> str:
        """An initializer with uniformly distributed values."""
        tensor = self.model.graph.initializer.add()
        tensor.name, tensor.data_type = name, TensorProto.FLOAT
        tensor.dims.extend(shape)
        tensor.raw_data = self._draw(math.prod(shape), low, high).astype("<f4", copy=False).tobytes()
        return name

    def _draw(self, count: int, low: float, high: float) -> NDArray[np.float32]:
        # Raw PCG64 words and exactly rounded operations only: numpy keeps the words stable across versions,
        # but not the distributions of Generator, and the normal one calls the platform's log and exp.
        values = np.empty(count, np.float32)
        step = (high - low) * 2.0**-24
        for start in range(0, count, _BLOCK):
            block = values[start : start + _BLOCK]
            words = self._bits.random_raw((block.size + 1) // 2).astype("<u8").view("<u4")[: block.size]
            block[:] = (words >> 8) * step + low
        return values

    # Layers

    def conv(
        self,
        x: Value,
        out: int,
        kernel: int | Pair,
        *,
        stride: int = 1,
        padding: int | Pads | None = None,
        groups: int = 1,
        bias: bool = True,
        gain: float = RELU_GAIN,
    ) -> Value:
        """Convolution, by default with the padding that keeps an image's size at stride 1.

        A pair is (height, width), pads are (top, left, bottom, right); as many groups as channels: depthwise.
        """
        name = self._unique("Conv")
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        if padding is None:
            padding = (height // 2, width // 2, height // 2, width // 2)
        shape = (out, x.features // groups, height, width)
        weights = [self.weight(f"{name}.weight", shape, fan_in=math.prod(shape[1:]), gain=gain)]
        if bias:
            weights.append(self._bias(name, out))
        return self.node(
            "Conv",
            x,
            *weights,
            features=out,
            name=name,
            kernel_shape=(height, width),
            strides=(stride, stride),
            pads=(padding,) * 4 if isinstance(padding, int) else padding,
            group=groups,
        )

    def conv_bn(
        self,
        x: Value,
        out: int,
        kernel: int | Pair,
        *,
        stride: int = 1,
        padding: int | Pads | None = None,
        groups: int = 1,
        act: Activation = "relu",
        gain: float = 1.0,
        epsilon: float = 1e-5,
    ) -> Value:
        """Convolution without bias, batch norm, activation; `gain` scales what the activation sees."""
        x = self.conv(x, out, kernel, stride=stride, padding=padding, groups=groups, bias=False, gain=_GAIN[act])
        return self.activate(self.batch_norm(x, gain=gain, epsilon=epsilon), act)

    def batch_norm(self, x: Value, *, gain: float = 1.0, epsilon: float = 1e-5) -> Value:
        """Batch norm far from the identity, though times `gain` it keeps the mean square in expectation."""
        name = self._unique("BatchNormalization")
        shape = (x.features,)
        return self.node(
            "BatchNormalization",
            x,
            self.uniform(f"{name}.weight", shape, 0.5 * gain, 1.4 * gain),
            self.uniform(f"{name}.bias", shape, -0.3, 0.3),
            self.uniform(f"{name}.running_mean", shape, -0.3, 0.3),
            self.uniform(f"{name}.running_var", shape, 0.6, 1.6),
            name=name,
            epsilon=epsilon,
        )

    def activate(self, x: Value, act: Activation) -> Value:
        match act:
            case "relu":
                return self.relu(x)
            case "relu6":
                return self.node("Clip", x, self.scalar(0.0), self.scalar(6.0))
            case "silu":
                return self.node("Mul", x, self.node("Sigmoid", x))
            case "none":
                return x

    def relu(self, x: Value) -> Value:
        return self.node("Relu", x)

    def add(self, x: Value, y: Value | str) -> Value:
        return self.node("Add", x, y)

    def concat(self, *xs: Value) -> Value:
        """Concatenation along the channels of images."""
        return self.node("Concat", *xs, features=sum(x.features for x in xs), axis=1)

    def max_pool(self, x: Value, kernel: int, stride: int, *, padding: int = 0, ceil: bool = False) -> Value:
        return self.node(
            "MaxPool",
            x,
            kernel_shape=(kernel, kernel),
            strides=(stride, stride),
            pads=(padding,) * 4,
            ceil_mode=int(ceil),
        )

    def global_pool(self, x: Value) -> Value:
        """The mean over height and width, [batch, channels, 1, 1]."""
        return self.node("GlobalAveragePool", x)

    def flatten(self, x: Value, *, features: int | None = None) -> Value:
        return self.node("Flatten", x, features=features, axis=1)

    def linear(self, x: Value, out: int, *, gain: float = 1.0) -> Value:
        """A fully connected layer on [batch, features]."""
        name = self._unique("Gemm")
        weight = self.weight(f"{name}.weight", (out, x.features), fan_in=x.features, gain=gain)
        return self.node("Gemm", x, weight, self._bias(name, out), features=out, name=name, transB=1)

    def project(self, x: Value, out: int, *, gain: float = 1.0) -> Value:
        """A fully connected layer on the last axis of [batch, sequence, features]."""
        name = self._unique("MatMul")
        weight = self.weight(f"{name}.weight", (x.features, out), fan_in=x.features, gain=gain)
        product = self.node("MatMul", x, weight, features=out, name=name)
        return self.add(product, self._bias(name, out))

    def layer_norm(self, x: Value, *, epsilon: float) -> Value:
        """Layer norm over the last axis."""
        name = self._unique("LayerNormalization")
        scale = self.uniform(f"{name}.weight", (x.features,), 0.7, 1.3)
        shift = self.uniform(f"{name}.bias", (x.features,), -0.2, 0.2)
        return self.node("LayerNormalization", x, scale, shift, name=name, axis=-1, epsilon=epsilon)

    def embed(self, rows: int, features: int, ids: Value | str) -> Value:
        """Rows of a learned [rows, features] table, picked by int64 `ids`."""
        name = self._unique("Gather")
        table = self.weight(f"{name}.weight", (rows, features), fan_in=1)
        return self.node("Gather", table, ids, features=features, name=name, axis=0)

    def classify(self, x: Value, classes: int) -> None:
        """Global mean, fully connected layer, output `logits`: [batch, classes]."""
        self.logits(self.linear(self.flatten(self.global_pool(x)), classes))

    def logits(self, x: Value) -> None:
        self.output(x, "logits", ("batch", x.features))

    def _bias(self, name: str, out: int) -> str:
        return self.uniform(f"{name}.bias", (out,), -0.1, 0.1)

    def _append(
        self,
        op: str,
        name: str,
        inputs: Sequence[Value | str],
        outputs: Sequence[str],
        attributes: dict[str, object],
    ) -> None:
        used = [value.name if isinstance(value, Value) else value for value in inputs]
        self.model.graph.node.append(helper.make_node(op, used, outputs, name=name, **attributes))

    def _unique(self, op: str) -> str:
        count = self._counts[op] = self._counts.get(op, -1) + 1
        return f"{op}_{count}"


def _features(value: Value | str) -> int:
    if isinstance(value, str):
        raise TypeError(f"the features of the node on {value!r} must be given")
    return value.features
