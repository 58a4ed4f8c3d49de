"""The size of a model, counted on its graph: weights to learn and multiply-adds to execute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slipstream.errors import ModelError

if TYPE_CHECKING:
    import onnx

# Shape inference reads values only of small tensors (the target of a Reshape, the scales of a Resize).
_SMALL = 64


def parameters(model: onnx.ModelProto) -> int:
    """Learned weights, as papers count them: running means and variances of batch norms are left out.

    Every floating-point initializer counts; `Constant` nodes and integer initializers do not.
    """
    from onnx import TensorProto

    floats = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]}
    return sum(
        math.prod(tensor.dims)
        for tensor in model.graph.initializer
        if tensor.data_type in floats and tensor.name not in statistics
    )


def multiply_adds(model: onnx.ModelProto) -> int:
    """Multiply-adds of all Conv, Gemm and MatMul nodes for one sample: symbolic dimensions count as 1.

    Bias additions, activations, pooling and normalisation are left out, as is usual. Raises `ModelError`
    where ONNX shape inference does not reach such a node.
    """
    shapes = _shapes(model)
    total = 0
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul"):
            continue
        missing = [name for name in (*node.input[:2], node.output[0]) if name not in shapes]
        if missing:
            raise ModelError(
                f"cannot count the multiply-adds of {node.op_type} {node.name or node.output[0]!r}: "
                f"the shape of {missing[0]!r} is unknown"
            )
        total += math.prod(shapes[node.output[0]]) * _reduced(node, shapes)
    return total


def _reduced(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    """Products that are summed into one element of the node's output."""
    left, right = shapes[node.input[0]], shapes[node.input[1]]
    if node.op_type == "Conv":
        return math.prod(right[1:])
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return left[0] if transposed else left[-1]


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of all values, inferred on a copy without the large weights, for inference copies its model."""
    import onnx

    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.graph.name = model.graph.name
    light.graph.node.extend(model.graph.node)
    light.graph.input.extend(model.graph.input)
    for value in light.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = 1
    declared = {value.name for value in light.graph.input}
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL:
            light.graph.initializer.append(tensor)
        if tensor.name not in declared:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*inferred.input, *inferred.value_info)
        if value.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
