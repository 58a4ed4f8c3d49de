"""Filters that fill no vectors and rows that no tile divides: more are computed in the same function, and cut off."""

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
from slipstream.graph.cpu.whole_tiles import whole_rows, whole_vectors
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


def convolution(
    channels: int, filters: int, window: tuple[int, int], side: int, stride: int, border: bool
) -> onnx.ModelProto:
    """With bias, a residual add and relu."""
    rng = np.random.default_rng(0)
    pads = [extent // 2 if border else 0 for extent in window] * 2
    height, width = ((side + 2 * pad - extent) // stride + 1 for pad, extent in zip(pads, window, strict=False))
    weights = {"w": (filters, channels, *window), "b": (filters,)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=pads, strides=[stride, stride]),
        helper.make_node("Add", ["c", "residual"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    shapes = {"x": [1, channels, side, side], "residual": [1, filters, height, width], "y": [1, filters, height, width]}
    x, residual, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items())
    tensors = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    graph = helper.make_graph(nodes, "columns", [x, residual], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("columns", [8, 16, 56])
def test_rows_that_tiles_divide_stay(target: Target, columns: int) -> None:
    assert whole_rows(columns, 8 * target.vector_lanes, target) == (columns, 0.0)


def test_sums_that_do_not_fit_sixteen_registers_are_not_taken_for_fast() -> None:
    """27 columns divide into tiles of 9 x 1 and 3 x 4, which have as many sums as others, but in memory."""
    avx2 = Target("x86_64", "znver3", ("avx2", "fma"), (), 2)
    assert whole_rows(27, 32, avx2)[0] > 27
    assert whole_rows(28, 32, avx2)[0] == 28
    assert whole_rows(7, 64, avx2)[0] == 8  # for tiles of 4 x 2 instead of 7 x 1
    avx512 = Target("x86_64", "cascadelake", ("avx2", "avx512f", "fma"), (), 2)
    assert whole_rows(27, 64, avx512)[0] == 27
    assert whole_rows(7, 64, avx512)[0] == 7


@given(columns=st.integers(1, 300), vectors=st.integers(1, 40))
def test_any_row(columns: int, vectors: int) -> None:
    target = resolve_target(threads=2)
    computed, saved = whole_rows(columns, vectors * target.vector_lanes, target)
    assert (computed == columns) == (saved == 0)
    assert columns <= computed <= 1.25 * columns
    assert 0 <= saved < 1


@pytest.mark.parametrize(
    ("channels", "filters", "window", "side", "stride", "border", "is_wider"),
    [
        (16, 32, (1, 7), 37, 1, True, True),
        (16, 32, (7, 1), 37, 1, True, True),
        (64, 512, (3, 3), 75, 2, False, True),  # worth the copy
        (64, 512, (1, 1), 37, 1, False, True),
        (64, 16, (1, 1), 37, 1, False, False),  # not worth it
        (16, 32, (3, 3), 37, 1, True, False),  # Winograd's tiles are others
        (16, 27, (5, 5), 37, 1, True, True),  # filters too
    ],
)
def test_columns_are_added_and_cut_off(
    target: Target,
    channels: int,
    filters: int,
    window: tuple[int, int],
    side: int,
    stride: int,
    border: bool,
    is_wider: bool,
) -> None:
    made = convolution(channels, filters, window, side, stride, border)
    loaded = load_onnx(made, name="columns", source="memory")
    prepared, _ = prepare(loaded.module, target)
    (found,) = [operator for operator in extract_operators(prepared) if "conv2d" in operator.kinds]
    lanes = target.vector_elements
    if is_wider:
        width = whole_rows(37, whole_vectors(filters, lanes), target)[0]
        assert f"37x{width} + slice + add" in found.name
    else:
        assert "slice" not in found.name or whole_vectors(filters, lanes) > filters

    built = build(apply_programs(prepared, target), target)
    run = TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs)
    assert verify(loaded, run, verification_inputs(loaded, None)).outputs[0].max_relative < 1e-5


def test_the_search_can_tile_rows(target: Target) -> None:
    loaded = load_onnx(convolution(16, 32, (1, 7), 37, 1, True), name="columns", source="memory")
    (operator,) = [o for o in extract_operators(prepare(loaded.module, target)[0]) if "conv2d" in o.kinds]
    space, rng = Space(operator.key, operator.func, target), np.random.default_rng(0)
    for example in space.sketches:
        assert any(space.realize(space.draw(rng, [example])) is not None for _ in range(20)), example.sketch.form


def test_what_is_left_of_cut_off_filters_is_written_in_vectors(target: Target) -> None:
    """Left to LLVM, a residual add of 24 of 32 filters gathered and scattered elements of several pixels."""
    filters = int(1.5 * target.vector_lanes)
    prepared, _ = prepare(load_onnx(model(filters), name="filters", source="memory").module, target)
    (operator,) = [o for o in extract_operators(prepared) if "3x3" in o.name]
    space = Space(operator.key, operator.func, target)
    realized = space.realize(space.default)
    assert realized is not None
    after_the_sums = realized.module.script().split("conv2d_nhwc_update")[-1]
    assert f"T.vectorized(T.int64({target.vector_lanes // 2}))" in after_the_sums
