"""Operators that are rewritten or have programs of their own, with random attributes, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from slipstream.errors import UnsupportedModelError
from slipstream.frontends import load_model
from slipstream.machine.target import resolve_target
from tests.frontends.test_onnx_models import check, executor, integers, model, node, positive, weight

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"


def microsoft(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    made = node(op, inputs, outputs, **attributes)
    made.domain = MICROSOFT
    made.output[:] = ["" if name == "-" else name for name in made.output]
    return made


def with_microsoft(proto: onnx.ModelProto) -> onnx.ModelProto:
    proto.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return proto


def recurrent(kind: str, batch: int, hidden: int, steps: int = 6, seed: int = 0, **options: Any) -> onnx.ModelProto:
    """A node with everything optional given that `options` does not switch off."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    lengths, peepholes = options.pop("lengths", True), options.pop("peepholes", False)
    directions = 2 if options.get("direction") == "bidirectional" else 1
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {
        "w": weight(directions, gates * hidden, 5),
        "r": weight(directions, gates * hidden, hidden, seed=1),
        "b": weight(directions, 2 * 4 * hidden, seed=2)[:, : 2 * gates * hidden],
    }
    if lengths:
        weights["n"] = rng.integers(0, steps + 1, batch).astype(np.int32)
    if peepholes:
        weights["p"] = weight(directions, 3 * hidden, seed=3)
    states = "h c" if kind == "LSTM" else "h"
    given = f"x w r b {'n' if lengths else '-'} {states} {'p' if peepholes else ''}"
    outputs = "y last cell" if kind == "LSTM" else "y last"
    shape = [directions, batch, hidden]
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (T.FLOAT, [steps, batch, 5])}
    inputs |= {name: (T.FLOAT, [*shape]) for name in states.split()}
    return model([node(kind, given, outputs, hidden_size=hidden, **options)], inputs, outputs, 14, weights)


RECURRENT = {
    "lstm of both directions with lengths": ("LSTM", 3, 12, {"direction": "bidirectional"}),
    "lstm reversed, clipped, with peepholes": ("LSTM", 4, 8, {"direction": "reverse", "clip": 0.4, "peepholes": True}),
    "lstm that shares a step between cores": ("LSTM", 1, 128, {"lengths": False}),
    "lstm with coupled gates": ("LSTM", 1, 7, {"input_forget": 1}),
    "lstm of an odd size": ("LSTM", 1, 131, {"lengths": False, "direction": "reverse"}),
    "gru of both directions with lengths": ("GRU", 2, 9, {"direction": "bidirectional"}),
    "gru linear before reset": ("GRU", 4, 16, {"direction": "reverse", "linear_before_reset": 1}),
    "gru that shares a step between cores": ("GRU", 1, 160, {"lengths": False}),
    "rnn with other activations": ("RNN", 2, 10, {"direction": "bidirectional", "activations": ["Relu", "Relu"]}),
}


# Those that differ least from others are left to make test-all.
RARE = (
    "lstm with coupled gates",
    "lstm of an odd size",
    "gru that shares a step between cores",
    "rnn with other activations",
)


@pytest.mark.parametrize(
    ("kind", "batch", "hidden", "options"),
    [pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name in RARE)) for name, case in RECURRENT.items()],
)
def test_recurrent_layers(kind: str, batch: int, hidden: int, options: dict[str, Any]) -> None:
    check(recurrent(kind, batch, hidden, **options))


def test_the_steps_of_a_layer_have_the_same_key_once_printed_and_parsed() -> None:
    """A session stores its operators as text."""
    import tvm

    from slipstream.graph.describe.key import operator_key
    from slipstream.graph.operators import extract_operators
    from slipstream.graph.prepare import prepare

    prepared, _ = prepare(load_model(recurrent("LSTM", 1, 6)).module, resolve_target(threads=2))
    (steps,) = (operator for operator in extract_operators(prepared) if operator.name.startswith("lstm_steps"))
    assert operator_key(tvm.script.from_source(steps.func.script())) == steps.key
    assert steps.flops >= 2 * 6 * 4 * 6 * 6


def test_an_activation_with_parameters_is_refused_by_the_name_of_its_node() -> None:
    proto = recurrent("RNN", 1, 4, activations=["LeakyRelu"], activation_alpha=[0.1])
    proto.graph.node[0].name = "listener"
    with pytest.raises(UnsupportedModelError, match=r"'listener'.*leakyrelu"):
        load_model(proto)


def test_lstm_of_quantised_weights() -> None:
    rng = np.random.default_rng(0)
    hidden = 8
    weights = {
        "w": rng.integers(-127, 128, (1, 5, 4 * hidden)).astype(np.int8),
        "r": rng.integers(-127, 128, (1, hidden, 4 * hidden)).astype(np.int8),
        "b": weight(1, 8 * hidden),
        "ws": np.array([0.01], np.float32),
        "rs": np.array([0.01], np.float32),
        "z": np.zeros(1, np.int8),
    }
    nodes = [microsoft("DynamicQuantizeLSTM", "x w r b - - - - ws z rs z", "y last cell", hidden_size=hidden)]
    check(with_microsoft(model(nodes, {"x": (T.FLOAT, [4, 1, 5])}, "y last cell", 14, weights)))


def test_fused_products_and_activations() -> None:
    nodes = [
        microsoft(
            "FusedConv",
            "x w b",
            "c",
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            activation="LeakyRelu",
            activation_params=[0.2],
        ),
        microsoft("FusedConv", "c w2 - c", "d", kernel_shape=[1, 1], activation="Relu"),
        node("Reshape", "d shape", "e"),
        microsoft("FusedMatMul", "e e", "f", transA=1, alpha=0.3),
        microsoft("Gelu", "f", "g"),
        microsoft("BiasGelu", "g bias", "h"),
        microsoft("FastGelu", "h bias", "i"),
        microsoft("QuickGelu", "i", "j"),
        microsoft("FusedGemm", "j fw fb", "y", activation="Tanh", alpha=0.5, transB=1),
    ]
    weights = {
        "w": weight(6, 3, 3, 3),
        "b": weight(6),
        "w2": weight(6, 6, 1, 1),
        "shape": integers(24, 16),
        "bias": weight(16),
        "fw": weight(5, 16),
        "fb": weight(5),
    }
    check(with_microsoft(model(nodes, {"x": (T.FLOAT, [1, 3, 8, 8])}, "y", 13, weights)))


def test_fused_transformer_layer() -> None:
    nodes = [
        microsoft("EmbedLayerNormalization", "ids segments words places kinds g b mask", "x counted", epsilon=1e-6),
        microsoft("Attention", "x qkv qb mask", "a", num_heads=4),
        microsoft("SkipLayerNormalization", "a x g b sb", "s - - t", epsilon=1e-5),
        microsoft("MultiHeadAttention", "s t s qb", "m", num_heads=2),
        microsoft("SkipSimplifiedLayerNormalization", "m s g", "y", epsilon=1e-5),
    ]
    weights = {
        "words": weight(11, 16),
        "places": weight(7, 16),
        "kinds": weight(2, 16),
        "g": positive(16),
        "b": weight(16),
        "sb": weight(16, seed=4),
        "qkv": weight(16, 48),
        "qb": weight(48),
    }
    inputs = {name: (T.INT32, [2, 7]) for name in ("ids", "segments", "mask")}
    check(with_microsoft(model(nodes, inputs, "y t", 13, weights)))


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_attention_masks(causal: bool) -> None:
    lengths = np.array([3, 5], np.int32)
    nodes = [microsoft("Attention", "x qkv qb n", "y", num_heads=2, unidirectional=int(causal))]
    weights = {"qkv": weight(8, 24), "qb": weight(24), "n": lengths}
    check(with_microsoft(model(nodes, {"x": (T.FLOAT, [2, 5, 8])}, "y", 13, weights)))


def test_attention_whose_keys_are_read_too_is_left_as_it_is() -> None:
    nodes = [node("MatMul", "x w", "q"), microsoft("MultiHeadAttention", "q q q", "y keys values", num_heads=2)]
    for outputs, parts in (("y keys", 1), ("y", 0)):
        proto = with_microsoft(model(nodes, {"x": (T.FLOAT, [1, 64, 128])}, outputs, 13, {"w": weight(128, 128)}))
        left = load_model(proto).onnx_parts
        assert len(left) == parts
        assert all("lacks its output 'keys'" in part.reasons[0] for part in left)


def quantised(*shape: int, low: int, high: int, dtype: Any, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


def test_quantised_network() -> None:
    """As ONNX Runtime's quantiser writes it: from float to float, all that lies between in 8 bits."""
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("QLinearConv", "q xs xz w ws wz cs cz wb", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        microsoft("QLinearAdd", "c cs cz c cs cz as cz", "d"),
        microsoft("QLinearLeakyRelu", "d as cz as cz", "e", alpha=0.1),
        microsoft("QLinearGlobalAveragePool", "e as cz as cz", "p"),
        node("Flatten", "p", "f"),
        node("QLinearMatMul", "f as cz m ms mz ys cz", "g"),
        microsoft("QGemm", "g ys cz k ms mz - ys cz", "gg", transB=1),
        microsoft("QLinearSigmoid", "gg ys cz ss cz", "h"),
        node("DequantizeLinear", "h ss cz", "y"),
    ]
    weights = {
        "xs": np.array(0.02, np.float32),
        "xz": np.array(120, np.uint8),
        "w": quantised(6, 3, 3, 3, low=-100, high=100, dtype=np.int8),
        "ws": np.linspace(0.002, 0.004, 6, dtype=np.float32),
        "wz": np.zeros(6, np.int8),
        "wb": quantised(6, low=-500, high=500, dtype=np.int32),
        "cs": np.array(0.05, np.float32),
        "cz": np.array(128, np.uint8),
        "as": np.array(0.1, np.float32),
        "m": quantised(6, 5, low=-100, high=100, dtype=np.int8),
        "k": quantised(4, 5, low=-100, high=100, dtype=np.int8),
        "ms": np.array(0.01, np.float32),
        "mz": np.array(0, np.int8),
        "ys": np.array(0.02, np.float32),
        "ss": np.array(1 / 256, np.float32),
    }
    check(with_microsoft(model(nodes, {"x": (T.FLOAT, [1, 3, 9, 9])}, "y", 13, weights)))


def test_an_absent_zero_point_of_a_result_is_zero() -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        microsoft("QLinearAdd", "q s z q s z s", "a"),
        microsoft("QLinearAveragePool", "a s z s", "p", kernel_shape=[2, 2]),
        node("DequantizeLinear", "p s", "y"),
    ]
    weights = {"s": np.array(0.0625, np.float32), "z": np.array(100, np.uint8)}
    check(with_microsoft(model(nodes, {"x": (T.FLOAT, [1, 3, 4, 4])}, "y", 13, weights)))


def test_outputs_in_8_bits_may_be_one_level_off() -> None:
    """Also where they are moved after the rounding, and those of fused operators that round."""
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("QLinearConv", "q xs xz w ws wz ys yz", "c", kernel_shape=[3, 3]),
        node("MaxPool", "c", "p", kernel_shape=[2, 2]),
        node("Flatten", "p", "f"),
        microsoft("QLinearConcat", "ys yz f ys yz f ys yz", "j", axis=1),
        node("Concat", "j f", "k", axis=1),
        node("DequantizeLinear", "k ys yz", "d"),
        node("Reshape", "d flat", "y"),
        microsoft("QGemm", "f ys yz m ms mz - ys yz", "g"),
        microsoft("QGemm", "f ys yz m ms mz", "h"),
    ]
    weights = {
        "xs": np.array(0.02, np.float32),
        "xz": np.array(100, np.uint8),
        "w": quantised(16, 16, 3, 3, low=-128, high=128, dtype=np.int8),
        "ws": np.array(0.01, np.float32),
        "wz": np.array(0, np.int8),
        "ys": np.array(2.0, np.float32),
        "yz": np.array(0, np.uint8),
        "flat": integers(-1),
        "m": quantised(16 * 169, 3, low=-100, high=100, dtype=np.int8),
        "ms": np.array(0.01, np.float32),
        "mz": np.array(0, np.int8),
    }
    names = "c f j k y g h"
    proto = with_microsoft(
        model(nodes, {"x": (T.FLOAT, [1, 16, 16, 16])}, names, 13, weights, dict.fromkeys("cfjkg", T.UINT8))
    )
    assert load_model(proto).output_steps == (1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 0.0)


@pytest.mark.slow
def test_integer_products_that_exceed_the_range_of_float32() -> None:
    """Sums of 600 products of the largest numbers have to be computed in parts."""
    weights = {
        "b": quantised(600, 3, low=250, high=256, dtype=np.uint8),
        "w": quantised(2, 80, 3, 3, low=250, high=256, dtype=np.uint8),
        "s": np.array(0.001, np.float32),
        "z": np.array(0, np.uint8),
    }
    nodes = [
        node("QuantizeLinear", "x s z", "a"),
        node("MatMulInteger", "a b", "m"),
        node("QuantizeLinear", "i s z", "c"),
        node("ConvInteger", "c w", "n", kernel_shape=[3, 3]),
        node("DynamicQuantizeLinear", "x", "d e f"),
    ]
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (T.FLOAT, [4, 600]), "i": (T.FLOAT, [1, 80, 4, 4])}
    types = {"m": T.INT32, "n": T.INT32, "d": T.UINT8, "f": T.UINT8}
    check(model(nodes, inputs, "m n d e f", 13, weights, types))


@pytest.mark.slow
def test_dynamically_quantised_products() -> None:
    nodes = [
        microsoft("DynamicQuantizeMatMul", "x b bs bz bias", "m"),
        node("DynamicQuantizeLinear", "x", "q s z"),
        microsoft("MatMulIntegerToFloat", "q b s bs z bz bias", "n"),
    ]
    weights = {
        "b": quantised(24, 7, low=-100, high=100, dtype=np.int8),
        "bs": np.linspace(0.01, 0.02, 7, dtype=np.float32),
        "bz": np.zeros(7, np.int8),
        "bias": weight(7),
    }
    check(with_microsoft(model(nodes, {"x": (T.FLOAT, [5, 24])}, "m n", 13, weights)))


def test_fourier_transforms() -> None:
    nodes = [
        node("STFT", "x step window", "a", onesided=1),
        node("STFT", "x step - length", "b", onesided=0),
        node("Unsqueeze", "x last", "r"),
        node("DFT", "r", "c", axis=1, onesided=1),
        node("DFT", "c twenty", "d", axis=1, inverse=1),
        node("DFT", "d", "e", axis=1),
    ]
    weights = {
        "step": np.array(5, np.int64),
        "length": np.array(12, np.int64),
        "window": np.hanning(16).astype(np.float32),
        "last": integers(2),
        "twenty": np.array(20, np.int64),
    }
    check(model(nodes, {"x": (T.FLOAT, [2, 40])}, "a b c d e", 17, weights))


def test_sequences_reversed_and_scanned() -> None:
    tensor = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Add", "total item", "sum"), node("Mul", "sum item", "product")],
        "body",
        [tensor("total", T.FLOAT, [3]), tensor("item", T.FLOAT, [3])],
        [tensor("sum", T.FLOAT, [3]), tensor("product", T.FLOAT, [3])],
    )
    nodes = [
        node("ReverseSequence", "x lengths", "r", time_axis=0, batch_axis=1),
        node("Scan", "start r", "last all", body=body, num_scan_inputs=1, scan_input_directions=[1]),
    ]
    weights = {"lengths": integers(4, 1, 2)}
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (T.FLOAT, [4, 3]), "start": (T.FLOAT, [3])}
    check(model(nodes, inputs, "r last all", 13, weights))


PLACED = {
    "GatherElements": (node("GatherElements", "x i", "y", axis=0), {"x": (T.FLOAT, [8, 4]), "i": (T.INT64, [2, 4])}),
    "GatherND": (node("GatherND", "x i", "y"), {"x": (T.FLOAT, [8, 4]), "i": (T.INT64, [3, 2])}),
    "ScatterElements": (
        node("ScatterElements", "x i u", "y", axis=1),
        {"x": (T.FLOAT, [8, 4]), "i": (T.INT64, [8, 2]), "u": (T.FLOAT, [8, 2])},
    ),
    "ScatterND": (
        node("ScatterND", "x i u", "y"),
        {"x": (T.FLOAT, [8, 4]), "i": (T.INT64, [2, 1]), "u": (T.FLOAT, [2, 4])},
    ),
    "ReverseSequence": (
        node("ReverseSequence", "x i", "y", time_axis=0, batch_axis=1),
        {"x": (T.FLOAT, [6, 2, 4]), "i": (T.INT64, [2])},
    ),
    "LSTM": (
        node("LSTM", "x w r - i", "y", hidden_size=4, direction="bidirectional"),
        {"x": (T.FLOAT, [6, 2, 3]), "i": (T.INT32, [2])},
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_places_outside_of_a_tensor_are_not_touched(name: str) -> None:
    """ONNX Runtime raises an error there. A crash would end the process that runs this test."""
    made, inputs = PLACED[name]
    weights = {"w": weight(2, 16, 3), "r": weight(2, 16, 4, seed=1)} if name == "LSTM" else {}
    run = executor(model([made], inputs, "y", 16, weights))
    rng = np.random.default_rng(0)
    given = {key: rng.random(shape, np.float32) for key, (type_, shape) in inputs.items() if type_ == T.FLOAT}
    largest = max(1.0, *(float(abs(value).max()) for value in given.values()))
    for place in (10**8, -(10**8)):
        feed = {spec.name: given.get(spec.name, np.full(spec.shape, place, spec.dtype)) for spec in run.inputs}
        assert np.abs(run(feed)[0]).max() <= largest


@pytest.mark.parametrize("opset", [9, 10])
def test_classes_in_old_opsets(opset: int) -> None:
    weights = {"depth": np.array(5, np.int64), "values": np.array([-1, 2], np.float32)}
    check(model([node("OneHot", "x depth values", "y")], {"x": (T.INT64, [7])}, "y", opset, weights))


def test_a_replacement_that_the_opset_lacks_is_not_made() -> None:
    nodes = [node("MatMul", "x w", "h"), node("ReverseSequence", "h lengths", "y", time_axis=0, batch_axis=1)]
    weights = {"w": weight(64, 64), "lengths": np.arange(64)}
    loaded = load_model(model(nodes, {"x": (T.FLOAT, [64, 64, 64])}, "y", 10, weights))
    (part,) = loaded.onnx_parts
    assert part.nodes == 1
    assert "GatherElements that opset 10 lacks" in part.reasons[0]


def counting_loop(limit: str) -> onnx.ModelProto:
    """Doubles `v` while a counter is below `limit`, and keeps what it was."""
    tensor = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Add", "i one", "next"), node("Less", f"next {limit}", "more"), node("Add", "v v", "w")],
        "body",
        [tensor("i", T.INT64, []), tensor("c", T.BOOL, []), tensor("v", T.FLOAT, [3])],
        [tensor("more", T.BOOL, []), tensor("w", T.FLOAT, [3]), tensor("v", T.FLOAT, [3])],
    )
    nodes = [node("Loop", "- go x", "y all", body=body)]
    weights = {"go": np.array(True), "one": np.array(1, np.int64)}
    if limit == "three":
        weights["three"] = np.array(3, np.int64)
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (T.FLOAT, [3])}
    if limit == "n":
        inputs["n"] = (T.INT64, [])
    return model(nodes, inputs, "y all", 13, weights)


def test_a_loop_whose_condition_is_known() -> None:
    check(counting_loop("three"))


def test_a_loop_whose_condition_depends_on_the_data_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Loop.* depends on the data"):
        load_model(counting_loop("n"))
    assert load_model(counting_loop("n"), constants={"n": 4}).outputs[1].shape == (4, 3)


def test_branches_inside_branches_are_chosen_by_a_bound_input() -> None:
    def graph(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
        return helper.make_graph(nodes, output, [], [helper.make_tensor_value_info(output, T.FLOAT, None)])

    inner = node(
        "If",
        "slow",
        "inner",
        then_branch=graph([node("Neg", "x", "a")], "a"),
        else_branch=graph([node("Slice", "x one two", "b")], "b"),
    )
    nodes = [
        node("Equal", "rate wide", "is_wide"),
        node("Less", "rate wide", "slow"),
        node(
            "If", "is_wide", "y", then_branch=graph([node("Relu", "x", "c")], "c"), else_branch=graph([inner], "inner")
        ),
    ]
    weights = {"wide": np.array(16000, np.int64), "one": integers(1), "two": integers(3)}
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (T.FLOAT, [4, 3]), "rate": (T.INT64, [])}
    proto = model(nodes, inputs, "y", 13, weights)
    assert load_model(proto, constants={"rate": 16000}).outputs[0].shape == (4, 3)
    assert load_model(proto, constants={"rate": 48000}).outputs[0].shape == (2, 3)


def test_functions_of_the_model_and_of_onnx() -> None:
    opsets = [helper.make_opsetid("", 18)]
    shrink = helper.make_function(
        "mine", "Halve", ["a"], ["b"], [node("Mul", "a a", "s"), node("Celu", "s", "b")], opsets
    )
    own = node("Halve", "x", "h")
    own.domain = "mine"
    weights = {"size": integers(3, 8)}
    proto = model([own, node("CenterCropPad", "h size", "y")], {"x": (T.FLOAT, [5, 6])}, "y", 18, weights)
    proto.functions.append(shrink)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    check(proto)


# Base and exponent; a result that no integer holds is left to the processor, in ONNX Runtime too.
POWERS: dict[str, tuple[Array, Array]] = {
    "fractions": (np.array([2, 9, 3, 100, 0, 7], np.int32), np.array([0.5, 0.5, 1.5, -0.5, 0.3, -1], np.float32)),
    "one fraction": (np.array([2, 9, 3, 100, 0, 7], np.int64), np.array(0.5, np.float32)),
    "double": (np.array([2, 9, 3, 100, 1, 7], np.int32), np.array([0.5, -0.5, 1.5, 2.5, 0.3, -1], np.float64)),
    "integers": (np.array([2, 3, -1, 1, 5, -2], np.int64), np.array([-1, 4, -3, -7, 20, 5], np.int32)),
    "a square that wraps around": (np.array([100_000, -3, 7], np.int32), np.array(2, np.int32)),
    "a float's": (np.array([2, 9, 3, 100, 0.5, 7], np.float32), np.array([0.5, 0.5, 1.5, -0.5, 2, -1], np.float64)),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("case", POWERS)
def test_powers_of_mixed_types(case: str, known: bool) -> None:
    base, exponent = POWERS[case]
    types = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in (base, exponent)]
    inputs: dict[str, tuple[int, list[Any]]] = {"a": (types[0], [*base.shape])}
    if not known:
        exponent = np.broadcast_to(exponent, base.shape)  # ONNX Runtime multiplies by itself for one number alone
        inputs["b"] = (types[1], [*base.shape])
        base = np.minimum(base, 1000)
    weights = {"b": exponent} if known else {}
    proto = model([node("Pow", "a b", "y")], inputs, "y", 13, weights, {"y": types[0]})
    check(proto, {"a": base} if known else {"a": base, "b": np.ascontiguousarray(exponent)})


def test_erf_in_half_precision() -> None:
    check(model([node("Erf", "x", "y")], {"x": (T.FLOAT16, [4, 9])}, "y", 13, types={"y": T.FLOAT16}))


_INFINITE = np.float32(np.inf)
_ROWS = np.array(
    [[0, 2, 2, -1], [-_INFINITE] * 4, [_INFINITE] * 4, [-_INFINITE, 3, -_INFINITE, _INFINITE], [-_INFINITE, 0, 1, 1]],
    np.float32,
)


def test_log_sum_exp_of_infinite_elements() -> None:
    nodes = [
        node("ReduceLogSumExp", "x", "y", axes=[1], keepdims=0),
        node("ReduceLogSumExp", "x", "z", axes=[0]),
        node("ReduceLogSumExp", "x", "all"),
    ]
    check(model(nodes, {"x": (T.FLOAT, [5, 4])}, "y z all"), {"x": _ROWS})
    nodes = [node("ReduceLogSumExp", "x axes", "y"), node("ReduceLogSumExp", "x", "all", keepdims=0)]
    check(model(nodes, {"x": (T.FLOAT, [5, 4])}, "y all", 18, {"axes": integers(-1)}), {"x": _ROWS})


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
def test_the_place_of_an_extreme_among_infinite_and_lowest_elements(kind: str) -> None:
    nodes = [
        node(kind, "x", "y", axis=1, keepdims=0),
        node(kind, "x", "last", axis=1, select_last_index=1),
        node(kind, "bytes", "of_bytes", axis=1),
        node(kind, "bytes", "last_of_bytes", axis=1, select_last_index=1),
    ]
    finite = np.finfo(np.float32)
    rows = np.concatenate([_ROWS, np.full((1, 4), finite.min, np.float32), np.full((1, 4), finite.max, np.float32)])
    of_bytes = np.array([[0, 0, 0, 0], [255, 255, 255, 255], [1, 5, 5, 0]], np.uint8)
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (T.FLOAT, [7, 4]), "bytes": (T.UINT8, [3, 4])}
    outputs = "y last of_bytes last_of_bytes"
    proto = model(nodes, inputs, outputs, types=dict.fromkeys(outputs.split(), T.INT64))
    check(proto, {"x": rows, "bytes": of_bytes})


def test_functions_of_infinite_elements() -> None:
    nodes = [node("Hardmax", "x", "hard"), node("ThresholdedRelu", "x", "above", alpha=0.5)]
    check(model(nodes, {"x": (T.FLOAT, [5, 4])}, "hard above"), {"x": _ROWS})


@pytest.mark.parametrize("convolved", [False, True])
def test_maxima_of_windows_that_are_infinite(convolved: bool) -> None:
    nodes = [
        node("Conv", "x w", "c") if convolved else node("Identity", "x", "c"),
        node("MaxPool", "c", "y", kernel_shape=[3, 3], strides=[2, 2]),
        node("MaxPool", "c", "z", kernel_shape=[2, 2], dilations=[2, 2], strides=[1, 3], ceil_mode=1),
    ]
    x = weight(1, 3, 8, 9)
    x[0, 0 if convolved else slice(2), :6] = -_INFINITE
    weights = {"w": positive(8, 3, 1, 1)} if convolved else {}
    check(model(nodes, {"x": (T.FLOAT, [1, 3, 8, 9])}, "y z", weights=weights), {"x": x})


def test_the_variance_of_numbers_far_from_zero() -> None:
    proto = model([node("MeanVarianceNormalization", "x", "y")], {"x": (T.FLOAT, [2, 3, 4, 5])}, "y")
    # The mean is a power of two, so that ONNX Runtime, which subtracts squares, is exact too.
    signs = np.where(np.arange(120) % 2, np.float32(0.5), np.float32(-0.5)).reshape(2, 3, 4, 5)
    check(proto, {"x": np.float32(1024) + signs})


def test_small_types_are_refused() -> None:
    proto = model(
        [node("Cast", "x", "y", to=T.FLOAT8E4M3FN)], {"x": (T.FLOAT, [4])}, "y", 19, types={"y": T.FLOAT8E4M3FN}
    )
    with pytest.raises(UnsupportedModelError, match="float8e4m3fn"):
        load_model(proto)


@pytest.mark.slow
def test_a_bound_input_of_a_node_is_read_from_its_weights(tmp_path: Any) -> None:
    """Constants that a rewriting reads may be in a file beside the model."""
    window = np.hanning(512).astype(np.float32)
    nodes = [node("STFT", "x step window", "y")]
    proto = model(nodes, {"x": (T.FLOAT, [1, 2048])}, "y", 17, {"step": np.array(256, np.int64)})
    proto.graph.initializer.append(numpy_helper.from_array(window, "window"))
    path = tmp_path / "model.onnx"
    onnx.save(proto, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    check(path)
