"""Filters that fill no vectors: a few more are computed, in the same function, and nobody sees them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from slipstream.artifact.runtime import TvmExecutor
from slipstream.artifact.verify import verification_inputs, verify
from slipstream.frontends.onnx_import import load_onnx
from slipstream.graph.build import apply_programs, build
from slipstream.graph.cpu.whole_vectors import whole_vectors
from slipstream.graph.operators import extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import Target, resolve_target
from slipstream.program.space import Space


@pytest.mark.parametrize(
    ("filters", "lanes", "computed"),
    [(1000, 16, 1024), (24, 16, 32), (40, 16, 48), (1000, 8, 1000), (64, 16, 64), (8, 16, 8), (3, 16, 16)],
)
def test_filters_are_rounded_up_where_that_saves_instructions(filters: int, lanes: int, computed: int) -> None:
    assert whole_vectors(filters, lanes) == computed


@given(filters=st.integers(1, 5000), lanes=st.sampled_from([4, 8, 16]))
def test_any_number_of_filters(filters: int, lanes: int) -> None:
    computed = whole_vectors(filters, lanes)
    assert computed == filters or (computed % lanes == 0 and filters < computed < filters + 4 * lanes)


def model(filters: int) -> onnx.ModelProto:
    """A convolution, bias, relu and a residual add; behind it a strided convolution with as many filters."""
    rng = np.random.default_rng(0)
    weights = {"w": (filters, filters, 3, 3), "b": (filters,), "v": (filters, filters, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Add", ["r", "x"], ["a"]),
        helper.make_node("Conv", ["a", "v"], ["y"], strides=[2, 2]),
    ]
    shapes = {"x": [1, filters, 7, 7], "y": [1, filters, 4, 4]}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    initializers = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name) for name, shape in weights.items()
    ]
    graph = helper.make_graph(nodes, "filters", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target(threads=2)


@pytest.mark.parametrize("vectors", [1.5, 2.5])
def test_results_are_those_of_the_model_and_cut_off_in_the_same_function(target: Target, vectors: float) -> None:
    filters = int(vectors * target.vector_lanes)
    loaded = load_onnx(model(filters), name="filters", source="memory")
    prepared, _ = prepare(loaded.module, target)
    names = [operator.name for operator in extract_operators(prepared)]
    computed = whole_vectors(filters, target.vector_lanes)
    assert computed > filters
    assert f"conv2d 3x3 {filters}→{computed} 7x7 + slice + add + relu + add" in names
    assert not any(name.startswith("slice") for name in names)

    built = build(apply_programs(prepared, target), target)
    run = TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs)
    assert verify(loaded, run, verification_inputs(loaded, None)).outputs[0].max_relative < 1e-5


def test_the_search_can_tile_them(target: Target) -> None:
    filters = int(1.5 * target.vector_lanes)
    prepared, _ = prepare(load_onnx(model(filters), name="filters", source="memory").module, target)
    (operator,) = [o for o in extract_operators(prepared) if "3x3" in o.name]
    space, rng = Space(operator.key, operator.func, target), np.random.default_rng(0)
    assert len(space.own) > 1  # Winograd's forms too: its filters are whole vectors now
    for example in space.sketches:
        assert any(space.realize(space.draw(rng, [example])) is not None for _ in range(20)), example.sketch.form
