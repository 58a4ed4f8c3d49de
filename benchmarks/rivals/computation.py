"""Describes operators of several runtimes in the same terms, so that their times can be compared.

Each runtime fuses and lays out differently, and fused nodes do not have the names of the model. Operators are matched
by the computation: a convolution's window, channels and output, a product's extents. Operators with the same
computation are one row; all others are summed by kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import onnx

CONV_1X1, CONV_3X3, CONV, GROUPED, DEPTHWISE = "conv 1x1", "conv 3x3", "conv other", "conv grouped", "conv depthwise"
MATMUL, BATCH_MATMUL, POOL, SOFTMAX, NORM = "matmul", "batch matmul", "pool", "softmax", "norm"
LAYOUT, ELEMENTWISE, QUANTISE, ATTENTION = "layout and copies", "element-wise", "quantise", "attention"
# Blocked layouts and packed weights fill channels up to whole blocks: 1000 outputs are computed as 1008.
_BLOCK = 16

_CONVOLUTION = re.compile(
    r"(?P<how>depthwise |grouped )?conv2d (?P<height>\d+)x(?P<width>\d+)(/(?P<down>\d+)(x(?P<across>\d+))?)?\S*"
    r"( dilated \S+)? "
    r"(?P<inputs>\d+)(→(?P<outputs>\d+))?( \((?P<groups>\d+) groups\))? (?P<size>\d+x\d+)"
)

_NORMS = ("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization", "BatchNormalization", "LRN")
_MOVES = ("Reshape", "Transpose", "Concat", "Split", "Slice", "Flatten", "Squeeze", "Unsqueeze", "Gather", "Expand")
_ORT_KINDS = {
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean"), POOL),
    **dict.fromkeys(_NORMS, NORM),
    **dict.fromkeys((*_MOVES, "ReorderInput", "ReorderOutput", "Pad"), LAYOUT),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), QUANTISE),
    **dict.fromkeys(("Attention", "QAttention", "MultiHeadAttention"), ATTENTION),
    "Softmax": SOFTMAX,
}
# What ONNX Runtime adds to the name of a node that it has given another layout.
_ANOTHER_LAYOUT = re.compile(r"_token_\d+$")
_ORT_MATMULS = ("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "QLinearMatMul", "QGemm", "MatMulInteger")
_OPENVINO_KINDS = {
    **dict.fromkeys(("Pooling", "MaxPool", "AvgPool", "AdaptivePooling", "Reduce", "ReduceMean"), POOL),
    **dict.fromkeys(("MVN", "LayerNormalization", "NormalizeL2", "LRN", "RMSNorm", "RMS"), NORM),
    **dict.fromkeys((*_MOVES, "Reorder", "StridedSlice", "Convert", "Broadcast", "Pad", "Input", "Output"), LAYOUT),
    **dict.fromkeys(("ScaledDotProductAttention", "ScaledDotProductAttentionWithKVCache", "MHA"), ATTENTION),
    **dict.fromkeys(("Softmax", "SoftMax"), SOFTMAX),
    "FakeQuantize": QUANTISE,
}
# Nodes that OpenVINO makes of QuantizeLinear and DequantizeLinear, or adds beside them.
_ROUNDING = re.compile(r"QuantizeLinear|^(Convert|Subtract|Multiply|Add|Constant|Round|Clamp)_\d+$|ActivationToFP16$")
_OUR_KINDS = {
    **dict.fromkeys(("mean", "sum", "max"), POOL),
    **dict.fromkeys(("layer_norm", "rms_norm", "instance_norm", "group_norm", "moments"), NORM),
    **dict.fromkeys(("reshape", "transpose", "concat", "split", "slice", "copy", "pad", "take", "broadcast"), LAYOUT),
    **dict.fromkeys(("quantize", "dequantize"), QUANTISE),
    "softmax": SOFTMAX,
    "attention": ATTENTION,
}
# Functions that make one factor of a product of two activations ready.
_OF_PRODUCTS = re.compile(r"^(packed|sums_of_(rows|columns))\d*$")


class Computation(NamedTuple):
    """What an operator computes: its kind, and in words what is the same in both runtimes."""

    kind: str
    what: str = ""


def slipstream_computation(name: str, kinds: Sequence[str], function: str = "") -> Computation:
    """From the name Slipstream gives an operator, such as `conv2d 3x3/2 64→128 28x28 + add + relu`, and that of the
    compiled function."""
    head = next((part for part in name.split(" + ") if re.search(r"\d+x\d+|\d→", part)), name)
    if found := _CONVOLUTION.match(head):
        inputs, groups = int(found["inputs"]), int(found["groups"] or 1)
        window = (int(found["height"]), int(found["width"]))
        if found["how"] == "depthwise " or "depthwise" in function:
            groups = inputs
        elif inputs == 1 and found["across"]:  # neighbouring pixels are one axis, filled up to a whole vector
            inputs, window = int(found["across"]) // int(found["down"]), (window[0], window[0])
        return _convolution(window, inputs, int(found["outputs"] or found["inputs"]), groups, found["size"])
    if any("conv" in kind for kind in kinds):
        return Computation(CONV)
    if found := re.match(r"(batch_)?matmul (\d+(x\d+)+)", head):
        return _product(*map(int, found[2].split("x")))
    if _OF_PRODUCTS.match(function):
        return Computation(BATCH_MATMUL)
    if any("pool" in kind for kind in kinds):
        return Computation(POOL)
    special = [_OUR_KINDS[kind] for kind in kinds if kind in _OUR_KINDS]
    computing = [kind for kind in special if kind not in (LAYOUT, QUANTISE)]
    if computing:
        return Computation(computing[0])
    if not kinds or len(special) < len(kinds) or "looked_up" in function:
        return Computation(ELEMENTWISE)
    return Computation(QUANTISE if QUANTISE in special else LAYOUT)


def onnxruntime_computation(event: Mapping[str, Any], weights: Mapping[str, Sequence[int]]) -> Computation:
    """From one kernel's entry in ONNX Runtime's profile. `weights` are the shapes of those of convolutions by the name
    of their node (`weights_of_convolutions`): the profile lacks those that were stored anew."""
    arguments = event["args"]
    operator, node = arguments["op_name"], _ANOTHER_LAYOUT.sub("", event["name"].removesuffix("_kernel_time"))
    inputs, outputs = _shapes(arguments["input_type_shape"]), _shapes(arguments["output_type_shape"])
    if "Conv" in operator:
        known = weights.get(node) or next((shape for shape in inputs[1:] if len(shape) == 4), ())
        if len(known) != 4:
            return Computation(CONV)
        filters, per_group, *window = known
        # Another layout has the channels last, or in blocks, which may be more than there are.
        last = outputs[0][-1] == filters and outputs[0][1] != filters
        channels = inputs[0][-1] if last else inputs[0][1]
        size = "x".join(map(str, outputs[0][1:3] if last else outputs[0][2:]))
        return _convolution(window, channels, filters, channels // per_group, size)
    if operator in _ORT_MATMULS or operator.startswith(("MatMulIntegerToFloat", "DynamicQuantizeMatMul")):
        return _matmul(inputs[0], outputs[0])
    kind = _ORT_KINDS.get(operator) or _ORT_KINDS.get(operator.removeprefix("QLinear"), ELEMENTWISE)
    return Computation(kind)


def weights_of_convolutions(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Their shapes by name of the node; of constants in 8 bits too, which a DequantizeLinear stands behind."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in shapes:
            shapes[node.output[0]] = shapes[node.input[0]]
    return {
        node.name: shapes[node.input[1]]
        for node in model.graph.node
        if node.op_type == "Conv" and node.input[1] in shapes
    }


def openvino_computation(node: Any) -> Computation:
    """From a node of the graph that OpenVINO runs."""
    info = {key: text_of(value) for key, value in node.get_rt_info().items()}
    kind = info["layerType"]
    inputs = [tuple(value.get_shape()) for value in node.inputs() if value.get_partial_shape().is_static]
    outputs = [tuple(value.get_shape()) for value in node.outputs() if value.get_partial_shape().is_static]
    if "Convolution" in kind and outputs and len(outputs[0]) == 4 and len(inputs) > 1:
        channels, size = inputs[0][1], f"{outputs[0][2]}x{outputs[0][3]}"
        groups = inputs[1][0] if len(inputs[1]) > 4 else 1
        return _convolution(inputs[1][-2:], channels, outputs[0][1], groups, size)
    if "Convolution" in kind:
        return Computation(CONV)
    if kind in ("MatMul", "FullyConnected") and outputs and len(outputs[0]) > 1:
        return _matmul(inputs[0], outputs[0])
    known = _OPENVINO_KINDS.get(kind, ELEMENTWISE)
    originals = [name for name in info.get("originalLayersNames", "").split(",") if name]
    if known in (ELEMENTWISE, LAYOUT) and any("QuantizeLinear" in name for name in originals):
        known = QUANTISE if all(map(_ROUNDING.search, originals)) else known
    return Computation(known)


def text_of(value: Any) -> str:
    """A value of OpenVINO's notes about a node."""
    return str(value.astype(str) if hasattr(value, "astype") else value)


def _matmul(data: Sequence[int], result: Sequence[int]) -> Computation:
    rows, columns, inner = result[-2], result[-1], data[-1]
    batch = prod(result[:-2])
    return _product(*([batch] if batch > 1 else []), rows, inner, columns)


def _product(*extents: int) -> Computation:
    """Of extents of rows, sums and columns, after that of a batch if there is one."""
    *others, columns = extents
    return Computation(MATMUL if len(extents) == 3 else BATCH_MATMUL, "x".join(map(str, (*others, _filled(columns)))))


def _convolution(window: Sequence[int], inputs: int, outputs: int, groups: int, size: str) -> Computation:
    kind = {(1, 1): CONV_1X1, (3, 3): CONV_3X3}.get((window[0], window[1]), CONV)
    if groups > 1:
        kind = DEPTHWISE if groups >= inputs else GROUPED
    sides = f"{window[0]}x{window[1]}"
    return Computation(kind, f"{sides} {inputs if inputs < _BLOCK else _filled(inputs)}→{_filled(outputs)} to {size}")


def _filled(channels: int) -> int:
    return -(-channels // _BLOCK) * _BLOCK


def _shapes(described: Sequence[Mapping[str, Sequence[int]]]) -> list[tuple[int, ...]]:
    return [tuple(shape) for tensor in described for shape in tensor.values()]
