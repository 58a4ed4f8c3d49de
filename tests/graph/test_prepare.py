"""Preparation: what has to be fused is fused, what is constant is gone, and the numbers stay the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.artifact.runtime import TvmExecutor
from slipstream.artifact.verify import verification_inputs, verify
from slipstream.frontends.onnx_import import load_onnx
from slipstream.graph.build import apply_programs, build
from slipstream.graph.operators import extract_operators
from slipstream.graph.prepare import PASSES, prepare
from slipstream.graph.relax_walk import bindings_of_main, is_call_tir, is_constant
from slipstream.machine.target import resolve_target
from tests.conftest import embedding_model
from tests.frontends.test_onnx_models import check


def conv_block(*, norm_first: bool = False) -> onnx.ModelProto:
    """pad, convolution, batch norm, clip, residual add; or the batch norm in front, as in DenseNet."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int, positive: bool = False) -> onnx.TensorProto:
        values = rng.uniform(0.5, 2.0, shape) if positive else rng.standard_normal(shape)
        return numpy_helper.from_array(values.astype(np.float32), name)

    statistics = [weight("gamma", 8), weight("beta", 8), weight("mean", 8), weight("var", 8, positive=True)]
    low, high = (numpy_helper.from_array(np.float32(v), n) for n, v in (("low", 0.0), ("high", 6.0)))
    pads = numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "pads")
    norm = ["gamma", "beta", "mean", "var"]
    if norm_first:
        nodes = [
            helper.make_node("BatchNormalization", ["x", *norm], ["n"]),
            helper.make_node("Relu", ["n"], ["r"]),
            helper.make_node("Conv", ["r", "w"], ["y"], pads=[1, 1, 1, 1]),
        ]
    else:
        nodes = [
            helper.make_node("Pad", ["x", "pads"], ["p"]),
            helper.make_node("Conv", ["p", "w"], ["c"]),
            helper.make_node("BatchNormalization", ["c", *norm], ["n"]),
            helper.make_node("Clip", ["n", "low", "high"], ["k"]),
            helper.make_node("Add", ["k", "x"], ["y"]),
        ]
    used = {name for node in nodes for name in node.input}
    initializers = [t for t in (weight("w", 8, 8, 3, 3), *statistics, low, high, pads) if t.name in used]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 10, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 10, 10])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def target():
    return resolve_target()


def test_padding_norm_and_epilogue_end_up_inside_the_convolution(target) -> None:
    prepared, reports = prepare(slipstream.load_model(conv_block()).module, target)
    operators = extract_operators(prepared)
    (convolution,) = [operator for operator in operators if "conv2d" in operator.name]
    assert convolution.name == "conv2d 3x3 8→8 10x10 + add + clip + add"
    assert [operator.kinds for operator in operators if operator is not convolution] == [("transpose",)] * 2
    assert [report.name for report in reports] == [step.name for step in PASSES]
    assert not any(report.skipped for report in reports)


@pytest.mark.parametrize("norm_first", [False, True])
def test_prepared_and_scheduled_blocks_compute_the_same(target, norm_first: bool) -> None:
    model = load_onnx(conv_block(norm_first=norm_first), name="block", source="memory")
    built = build(apply_programs(prepare(model.module, target)[0], target), target)
    run = TvmExecutor(built.executable, built.weights, model.inputs, model.outputs)
    checked = verify(model, run, verification_inputs(model, None))
    assert checked.outputs[0].max_relative < 1e-5


@pytest.mark.parametrize("shape", [(), (8,), (8, 1), (8, 1, 1), (1, 8, 1, 1), (8, 1, 1, 1)])
def test_a_constant_between_convolution_and_batch_norm_is_added_along_its_own_axes(shape: tuple[int, ...]) -> None:
    """It is a bias only if it is one number for each channel: here all axes of the image are as long."""
    proto = conv_block()
    added = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(added, "added"))
    del proto.graph.node[-2:]
    proto.graph.node[-1].input[0], proto.graph.node[-1].output[0] = "sum", "y"
    proto.graph.node.insert(2, helper.make_node("Add", ["c", "added"], ["sum"]))
    for value, extents in ((proto.graph.input[0], [8] * 4), (proto.graph.output[0], [8] * 4)):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, extents))
    check(proto)


def test_nothing_constant_is_left_to_compute_at_run_time(target) -> None:
    prepared, _ = prepare(slipstream.load_model(conv_block(norm_first=True)).module, target)
    for mod in (prepared, apply_programs(prepared, target)):
        for binding in bindings_of_main(mod):
            if is_call_tir(binding.value):
                assert not all(is_constant(argument) for argument in binding.value.args[1].fields)


def test_weights_are_packed_in_the_order_the_program_reads_them(target) -> None:
    prepared, _ = prepare(slipstream.load_model(conv_block()).module, target)
    built = build(apply_programs(prepared, target), target)
    packed = [weight for weight in built.weights if weight.size == 8 * 8 * 3 * 3]
    assert [weight.shape for weight in packed] != [(8, 3, 3, 8)]
    assert len(packed) == 1


def test_a_table_that_data_index_stays_as_it_is(target) -> None:
    """For a single index TVM would store only the row that index zero reads."""
    proto = embedding_model()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = 1
    model = load_onnx(proto, name="embedding", source="memory")
    built = build(apply_programs(prepare(model.module, target)[0], target), target)
    run = TvmExecutor(built.executable, built.weights, model.inputs, model.outputs)
    ids = [{"ids": np.array([[row]])} for row in range(11)]
    assert verify(model, run, ids).outputs[0].max_absolute == 0.0
