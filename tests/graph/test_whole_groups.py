"""Groups of filters that fill no vectors: more are computed in the same function, and cut off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.artifact.manifest import Manifest
from slipstream.graph.cpu.whole_tiles import whole_vectors
from slipstream.graph.operators import Operator, extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target
from slipstream.program.space import Space

LANES = resolve_target("cpu").vector_elements
ODD = LANES * 2 + 2  # filters of a group: two vectors and a little


def block(groups: int, channels: int, filters: int, **attributes: object) -> onnx.ModelProto:
    """A convolution of groups with bias, a residual add, relu6, and a pooling behind it."""
    rng = np.random.default_rng(0)
    window = attributes.pop("window", 1)
    weights = {"w": (groups * filters, channels, window, window), "b": (groups * filters,)}
    weights["v"] = (groups * filters, groups * channels, 1, 1)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["residual"]),
        helper.make_node("Conv", ["x", "w", "b"], ["c"], group=groups, **attributes),
        helper.make_node("Add", ["residual", "c"], ["a"]),
        helper.make_node("Clip", ["a", "", "six"], ["k"]),
        helper.make_node("MaxPool", ["k"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    tensors = [
        numpy_helper.from_array(np.asarray(rng.standard_normal(s), np.float32), name) for name, s in weights.items()
    ]
    tensors.append(numpy_helper.from_array(np.float32(6), "six"))
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, groups * each, 9, 9])
        for name, each in (("x", channels), ("y", filters))
    )
    graph = helper.make_graph(nodes, "groups", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolution_of(model: onnx.ModelProto) -> Operator:
    prepared, _ = prepare(slipstream.load_model(model).module, resolve_target("cpu"))
    (found,) = [o for o in extract_operators(prepared) if o.name.startswith(("grouped", "depthwise"))]
    return found


@pytest.mark.parametrize(
    ("groups", "channels", "filters", "attributes"),
    [
        (4, 5, ODD, {}),
        (3, 7, ODD, {"window": 3, "pads": [1, 1, 1, 1]}),
        (2, 4, ODD, {"window": 3, "pads": [2, 2, 2, 2], "dilations": [2, 2]}),
        (2, 4, ODD, {"window": 2, "pads": [0, 1, 1, 0]}),
    ],
)
def test_results_are_cut_off_in_the_same_function(
    groups: int, channels: int, filters: int, attributes: dict[str, object], tmp_path: Path
) -> None:
    model = block(groups, channels, filters, **attributes)
    computed = whole_vectors(filters, LANES)
    assert computed > filters
    name = convolution_of(model).name
    assert f"→{groups * computed} ({groups} groups) 9x9 + slice + add + add + minimum" in name
    slipstream.compile(model, tmp_path / "model")  # compares with ONNX Runtime
    assert Manifest.read(tmp_path / "model").prefix


@pytest.mark.parametrize(("channels", "filters"), [(1, 1), (1, ODD), (5, LANES)])
def test_what_fills_vectors_or_is_depthwise_stays(channels: int, filters: int) -> None:
    assert "slice" not in convolution_of(block(4, channels, filters)).name


def test_strides(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((3 * ODD, 4, 3, 3)).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=3, strides=[2, 3], pads=[1, 0, 0, 2]),
        helper.make_node("Conv", ["c", "v"], ["y"], group=3),
    ]
    second = numpy_helper.from_array(rng.standard_normal((3 * ODD, ODD, 1, 1)).astype(np.float32), "v")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 12, 10, 13])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3 * ODD, 5, 5])
    graph = helper.make_graph(nodes, "strides", [x], [y], [weight, second])
    slipstream.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model"
    )


def test_the_search_can_tile_them() -> None:
    operator = convolution_of(block(4, 5, ODD))
    space, rng = Space(operator.key, operator.func, resolve_target("cpu")), np.random.default_rng(0)
    assert space.own
    for example in space.sketches:
        assert any(space.realize(space.draw(rng, [example])) is not None for _ in range(20)), example.sketch.form
