"""Describes operators of two runtimes in the same terms, so that their times can be compared.

Each runtime fuses and lays out differently, and fused nodes do not have the names of the model. Operators are matched
by the computation: a convolution's window, channels and output, a product's extents. Operators with the same
computation are one row; all others are summed by kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

CONV_1X1, CONV_3X3, CONV, GROUPED, DEPTHWISE = "conv 1x1", "conv 3x3", "conv other", "conv grouped", "conv depthwise"
MATMUL, BATCH_MATMUL, POOL, SOFTMAX, NORM = "matmul", "batch matmul", "pool", "softmax", "norm"
LAYOUT, ELEMENTWISE = "layout and copies", "element-wise"
# ONNX Runtime's blocked layout fills channels up to whole blocks: 1000 outputs are computed as 1008.
_BLOCK = 16

_CONVOLUTION = re.compile(
    r"(?P<how>depthwise |grouped )?conv2d (?P<height>\d+)x(?P<width>\d+)\S*( dilated \S+)? "
    r"(?P<inputs>\d+)(→(?P<outputs>\d+))?( \((?P<groups>\d+) groups\))? (?P<size>\d+x\d+)"
)

_ORT_KINDS = {
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean"), POOL),
    **dict.fromkeys(("LayerNormalization", "SkipLayerNormalization", "BatchNormalization", "LRN"), NORM),
    **dict.fromkeys(("Reshape", "Transpose", "Concat", "Split", "Slice", "Flatten", "Squeeze", "Unsqueeze"), LAYOUT),
    **dict.fromkeys(("ReorderInput", "ReorderOutput", "Gather", "Expand", "Pad"), LAYOUT),
    "Softmax": SOFTMAX,
}
_OUR_KINDS = {
    **dict.fromkeys(("mean", "sum", "max"), POOL),
    **dict.fromkeys(("layer_norm", "rms_norm", "instance_norm", "group_norm", "moments"), NORM),
    **dict.fromkeys(("reshape", "transpose", "concat", "split", "slice", "copy", "pad", "take", "broadcast"), LAYOUT),
    "softmax": SOFTMAX,
}


class Computation(NamedTuple):
    """What an operator computes: its kind, and in words what is the same in both runtimes."""

    kind: str
    what: str = ""


def slipstream_computation(name: str, kinds: Sequence[str]) -> Computation:
    """From the name Slipstream gives an operator, such as `conv2d 3x3/2 64→128 28x28 + add + relu`."""
    head = next((part for part in name.split(" + ") if re.search(r"\d+x\d+|\d→", part)), name)
    if found := _CONVOLUTION.match(head):
        inputs = int(found["inputs"])
        groups = inputs if found["how"] == "depthwise " else int(found["groups"] or 1)
        window = (int(found["height"]), int(found["width"]))
        return _convolution(window, inputs, int(found["outputs"] or inputs), groups, found["size"])
    if any("conv" in kind for kind in kinds):
        return Computation(CONV)
    if found := re.match(r"(batch_)?matmul (\S+)", head):
        return Computation(BATCH_MATMUL if found[1] else MATMUL, found[2])
    if any("pool" in kind for kind in kinds):
        return Computation(POOL)
    special = [_OUR_KINDS[kind] for kind in kinds if kind in _OUR_KINDS]
    computing = [kind for kind in special if kind != LAYOUT]
    if computing:
        return Computation(computing[0])
    return Computation(LAYOUT if len(special) == len(kinds) else ELEMENTWISE)


def onnxruntime_computation(event: Mapping[str, Any]) -> Computation:
    """From one kernel's entry in ONNX Runtime's profile."""
    arguments = event["args"]
    operator = arguments["op_name"]
    inputs, outputs = _shapes(arguments["input_type_shape"]), _shapes(arguments["output_type_shape"])
    if operator in ("Conv", "FusedConv", "NhwcFusedConv") and len(inputs[1]) == 4:
        window, per_group = (inputs[1][2], inputs[1][3]), inputs[1][1]
        channels = inputs[0][1]
        groups = channels // per_group
        return _convolution(window, channels, outputs[0][1], groups, f"{outputs[0][2]}x{outputs[0][3]}")
    if "Conv" in operator:
        return Computation(CONV)
    if operator in ("MatMul", "FusedMatMul", "Gemm", "FusedGemm"):
        rows, columns, inner = outputs[0][-2:][0], outputs[0][-1], inputs[0][-1]
        batch = prod(outputs[0][:-2])
        return Computation(MATMUL, f"{rows}x{inner}x{columns}") if batch == 1 else _batched(batch, rows, inner, columns)
    return Computation(_ORT_KINDS.get(operator, ELEMENTWISE))


def _batched(batch: int, rows: int, inner: int, columns: int) -> Computation:
    return Computation(BATCH_MATMUL, f"{batch}x{rows}x{inner}x{columns}")


def _convolution(window: tuple[int, int], inputs: int, outputs: int, groups: int, size: str) -> Computation:
    kind = {(1, 1): CONV_1X1, (3, 3): CONV_3X3}.get(window, CONV)
    if groups > 1:
        kind = DEPTHWISE if groups >= inputs else GROUPED
    sides = f"{window[0]}x{window[1]}"
    return Computation(kind, f"{sides} {_padded(inputs)}→{_padded(outputs)} to {size}")


def _padded(channels: int) -> int:
    return channels if channels < _BLOCK else -(-channels // _BLOCK) * _BLOCK


def _shapes(described: Sequence[Mapping[str, Sequence[int]]]) -> list[tuple[int, ...]]:
    return [tuple(shape) for tensor in described for shape in tensor.values()]
