"""Images: the convolution reads them channels first, as they come; other tensors are transposed as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.frontends.onnx_import import load_onnx
from slipstream.graph.operators import Operator, extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import Target, resolve_target
from slipstream.program.space import Space


def model(channels: int, *, pads: int = 1, also_added: bool = False) -> onnx.ModelProto:
    """A convolution and a relu of an image, behind it another convolution; the image is added to that if asked."""
    rng = np.random.default_rng(0)
    weights = {"w": (32, channels, 3, 3), "b": (32,), "v": (channels, 32, 3, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[pads] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y" if not also_added else "z"], pads=[1] * 4),
        *([helper.make_node("Add", ["z", "x"], ["y"])] if also_added else []),
    ]
    size = 10 + 2 * pads
    shapes = {"x": [1, channels, 12, 12], "y": [1, channels, size, size]}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    initializers = [
        numpy_helper.from_array(0.1 * rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    graph = helper.make_graph(nodes, "image", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target(threads=2)


def operators(target: Target, proto: onnx.ModelProto) -> list[Operator]:
    prepared, _ = prepare(load_onnx(proto, name="image", source="memory").module, target)
    return extract_operators(prepared)


def transposed(found: list[Operator]) -> list[tuple[int, ...]]:
    """What is transposed by an operator of its own."""
    return [operator.shapes[0][0] for operator in found if operator.kinds[0] == "transpose"]


@pytest.mark.parametrize("pads", [0, 1])
def test_image_is_read_where_it_is(target: Target, pads: int) -> None:
    found = operators(target, model(3, pads=pads))
    assert (1, 3, 12, 12) not in transposed(found)
    first = next(operator for operator in found if operator.name.startswith("conv2d 3x3 3→32"))
    assert first.shapes[0][0] == (1, 3, 12, 12)
    assert first.kinds == ("conv2d", "add", "relu")


def test_many_channels_are_transposed_apart(target: Target) -> None:
    assert (1, 16, 12, 12) in transposed(operators(target, model(16)))


@pytest.mark.parametrize(("pads", "also_added"), [(0, False), (1, False), (1, True)])
def test_results_are_right_also_where_others_read_the_image(tmp_path: Path, pads: int, also_added: bool) -> None:
    onnx.save(model(3, pads=pads, also_added=also_added), tmp_path / "image.onnx")
    assert slipstream.compile(tmp_path / "image.onnx", tmp_path / "compiled", threads=2).verification is not None


def test_every_sketch_can_be_scheduled(target: Target) -> None:
    first = next(one for one in operators(target, model(3)) if one.name.startswith("conv2d 3x3 3→32"))
    space = Space(first.key, first.func, target)
    assert all(space.realize(example) is not None for example in space.sketches)
