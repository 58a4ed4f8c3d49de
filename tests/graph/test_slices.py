"""Splits and gathers at one place: nothing is copied only to be taken apart, and the numbers stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.graph.operators import extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target


def model_of(nodes: list[onnx.NodeProto], constants: dict[str, object], result: list[int]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "parts",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def heads_of_a_split() -> onnx.ModelProto:
    """The parts of a joint projection, of different widths, each cut into heads."""
    parts, nodes = {"q": 2, "k": 2, "v": 4}, []
    for name in parts:
        nodes += [
            helper.make_node("Reshape", [name, f"{name} shape"], [f"{name} cut"]),
            helper.make_node("Transpose", [f"{name} cut"], [f"{name} heads"], perm=[1, 0, 2]),
            helper.make_node("ReduceSum", [f"{name} heads", "last"], [f"{name} sum"], keepdims=0),
        ]
    constants: dict[str, object] = {f"{name} shape": [8, 6, width] for name, width in parts.items()}
    constants |= {"sizes": [6 * width for width in parts.values()], "last": [2]}
    split = helper.make_node("Split", ["x", "sizes"], list(parts), axis=-1)
    joined = helper.make_node("Concat", [f"{name} sum" for name in parts], ["y"], axis=0)
    return model_of([split, *nodes, joined], constants, [18, 8])


def places_of_a_gather() -> onnx.ModelProto:
    """As `unbind` is exported: one place of an axis after the other, also from its end."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["parts"]),
        *[helper.make_node("Gather", ["parts", f"at {place}"], [f"part {place}"], axis=1) for place in (0, 1, -1)],
        helper.make_node("Sub", ["part 0", "part 1"], ["difference"]),
        helper.make_node("Mul", ["difference", "part -1"], ["y"]),
    ]
    return model_of(nodes, {"shape": [8, 3, 16], "at 0": 0, "at 1": 1, "at -1": -1}, [8, 16])


@pytest.mark.parametrize("make", [heads_of_a_split, places_of_a_gather])
def test_parts_are_read_where_they_are(make, tmp_path: Path) -> None:
    model = make()
    operators = extract_operators(prepare(slipstream.load_model(model).module, resolve_target())[0])
    kinds = [kind for operator in operators for kind in operator.kinds]
    assert "slice" in kinds
    assert not {"split", "take"}.intersection(kinds)
    assert all(operator.kinds != ("slice",) for operator in operators)  # each is part of what reads it

    x = np.random.default_rng(0).standard_normal((8, 48)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    slipstream.compile(model, tmp_path / "model")
    (found,) = slipstream.load(tmp_path / "model")(x=x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
