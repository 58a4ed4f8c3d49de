"""Layout conversion: what stands between two convolutions costs no transposes, and computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.relax import op

import slipstream
from slipstream.graph.layout import convert_layout
from slipstream.graph.relax_walk import is_constant

_BETWEEN: dict[str, Callable[[Any], Any]] = {
    "relu": op.nn.relu,
    "clip": lambda x: op.clip(x, 0, 6),
    "hard swish": lambda x: op.multiply(x, op.clip(op.add(op.multiply(x, relax.const(1 / 6)), relax.const(0.5)), 0, 1)),
    "leaky relu": lambda x: op.nn.leakyrelu(x, 0.1),
    "one number per channel": lambda x: op.add(x, relax.const(np.ones((8, 1, 1), np.float32))),
    "silu": op.nn.silu,
    "average": lambda x: op.multiply(x, op.mean(x, [2, 3], keepdims=True)),
}


def _transposes(between: Callable[[Any], Any]) -> int:
    builder = relax.BlockBuilder()
    weight = relax.const(np.ones((8, 8, 3, 3), np.float32))
    x = relax.Var("x", relax.TensorType((1, 8, 16, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(op.nn.conv2d(x, weight, padding=1))
            middle = builder.emit(builder.normalize(between(first)))
            result = builder.emit_output(op.nn.conv2d(middle, weight, padding=1))
        builder.emit_func_output(result)
    found = []

    def visit(value: Any) -> None:
        if isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.permute_dims"):
            found.extend([] if is_constant(value.args[0]) else [value])

    relax.analysis.post_order_visit(convert_layout(builder.get())["main"], visit)
    return len(found)


@pytest.mark.parametrize("name", _BETWEEN)
def test_no_transposes_between_convolutions(name: str) -> None:
    assert _transposes(_BETWEEN[name]) == 2  # of the input and of the output


def test_respelled_operators_compute_the_same(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((8, 8, 3, 3)).astype(np.float32) for _ in range(2)]
    scale = rng.standard_normal((8, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("HardSwish", ["a"], ["b"]),
        helper.make_node("LeakyRelu", ["b"], ["c"], alpha=0.2),
        helper.make_node("Clip", ["c", "low", "high"], ["d"]),
        helper.make_node("Mul", ["scale", "d"], ["e"]),
        helper.make_node("Conv", ["e", "w1"], ["y"], pads=[1, 1, 1, 1]),
    ]
    constants = {"w0": weights[0], "w1": weights[1], "scale": scale, "low": np.float32(-0.1), "high": np.float32(2.5)}
    graph = helper.make_graph(
        nodes,
        "respelled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 12, 12])],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert slipstream.compile(model, tmp_path / "out").verification is not None
