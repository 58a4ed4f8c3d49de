"""Structures of real models, each as a tiny graph, compiled and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from slipstream.artifact.runtime import TvmExecutor
from slipstream.artifact.verify import verification_inputs, verify
from slipstream.errors import ModelError, ShapeError, UnsupportedModelError
from slipstream.frontends import load_model
from slipstream.frontends.model import Model
from slipstream.machine.target import resolve_target

Array = np.ndarray[Any, Any]
Case = Callable[[], onnx.ModelProto]

IMAGE = {"x": (T.FLOAT, [1, 3, 16, 16])}
EMPTY = np.array([], np.float32)

COMPILE: dict[str, Case] = {}
REFUSE: dict[str, tuple[Case, type[ModelError], str]] = {}


def compiles(case: Case) -> Case:
    """A model that has to compile and to match ONNX Runtime."""
    COMPILE[case.__name__] = case
    return case


def refuses(error: type[ModelError], words: str) -> Callable[[Case], Case]:
    """A model that has to be refused with one line that contains `words`."""

    def register(case: Case) -> Case:
        REFUSE[case.__name__] = (case, error, words)
        return case

    return register


def weight(*shape: int, seed: int = 0) -> Array:
    scale = np.sqrt(max(1, np.prod(shape[1:])))
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) / scale).astype(np.float32)


def positive(*shape: int) -> Array:
    return np.abs(weight(*shape)) + np.float32(0.5)


def integers(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Names separated by spaces; `-` leaves an optional one out."""
    return helper.make_node(op, ["" if i == "-" else i for i in inputs.split()], outputs.split(), **attributes)


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: str,
    opset: int = 13,
    weights: dict[str, Array] | None = None,
    types: dict[str, int] | None = None,
) -> onnx.ModelProto:
    """`outputs` are floats unless `types` says otherwise; before opset 9 the weights are inputs too."""
    initializers = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    given = [helper.make_tensor_value_info(name, type_, shape) for name, (type_, shape) in inputs.items()]
    if opset < 9:
        given += [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in initializers]
    results = [helper.make_tensor_value_info(name, (types or {}).get(name, T.FLOAT), None) for name in outputs.split()]
    for result in results:
        result.type.tensor_type.ClearField("shape")
    graph = helper.make_graph(nodes, "case", given, results, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    proto.ir_version = 3 if opset < 9 else 8 if opset < 19 else 10
    return proto


def branch(op: str, inputs: str, output: str) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(output, T.FLOAT, None)
    result.type.tensor_type.ClearField("shape")
    return helper.make_graph([node(op, inputs, output)], "branch", [], [result])


def check(proto: Any, given: dict[str, Array] | None = None) -> None:
    """Everything `slipstream.compile` does but write; inputs that are not `given` are random."""
    loaded = load_model(proto)
    verify(loaded, executor(loaded), verification_inputs(loaded, given))


def executor(given: Any) -> TvmExecutor:
    """A model, compiled."""
    from slipstream.graph.build import apply_programs, build
    from slipstream.graph.prepare import prepare

    target = resolve_target(threads=2)
    loaded = given if isinstance(given, Model) else load_model(given)
    prepared, _ = prepare(loaded.module, target)
    built = build(apply_programs(prepared, target), target)
    return TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs, 2)


@compiles
def darknet_of_opset_7() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w b", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c g s m v", "n", epsilon=1e-3),
        node("LeakyRelu", "n", "r", alpha=0.1),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Upsample", "p", "u", mode="nearest", scales=[1.0, 1.0, 2.0, 2.0]),
        node("Dropout", "u", "d", ratio=0.5),
        node("GlobalAveragePool", "d", "a"),
        node("Flatten", "a", "f"),
        node("Gemm", "f fw fb", "l", transB=1),
        node("Softmax", "l", "y"),
    ]
    weights = {"w": weight(8, 3, 3, 3), "b": weight(8), "g": positive(8), "s": weight(8), "m": weight(8)}
    return model(nodes, IMAGE, "y u", 7, weights | {"v": positive(8), "fw": weight(10, 8), "fb": weight(10)})


@compiles
def yolo_head_with_255_channels() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Sigmoid", "c", "g"),
        node("Mul", "c g", "silu"),
        node("MaxPool", "silu", "p", kernel_shape=[5, 5], pads=[2, 2, 2, 2]),
        node("Concat", "silu p", "k", axis=1),
        node("Conv", "k hw hb", "h"),
        node("Reshape", "h shape", "r"),
        node("Transpose", "r", "t", perm=[0, 1, 3, 4, 2]),
        node("Sigmoid", "t", "y"),
        node("Split", "y sizes", "xy wh cls", axis=4),
    ]
    weights = {"w": weight(16, 3, 1, 1), "b": weight(16), "hw": weight(255, 32, 1, 1), "hb": weight(255)}
    numbers = {"shape": integers(1, 3, 85, 7, 7), "sizes": integers(2, 2, 81)}
    return model(nodes, {"x": (T.FLOAT, [1, 3, 7, 7])}, "xy wh cls p", 13, weights | numbers)


@compiles
def padding_by_zero_before_a_max_pool() -> onnx.ModelProto:
    """ONNX Runtime merges the two, although a MaxPool pads by minus infinity."""
    nodes = [
        node("Neg", "x", "n"),
        node("Exp", "n", "e"),
        node("Neg", "e", "negative"),
        node("Pad", "negative pads", "p"),
        node("MaxPool", "p", "y", kernel_shape=[2, 2]),
    ]
    return model(nodes, IMAGE, "y", 13, {"pads": integers(0, 0, 0, 0, 0, 0, 1, 1)})


@compiles
def padding_that_a_branch_reads_too() -> onnx.ModelProto:
    """It stays, although one convolution alone reads it beside the branch; those in a row are merged."""
    nodes = [
        node("Pad", "x pads", "p"),
        node("Conv", "p w", "c"),
        node("If", "go", "y", then_branch=branch("Relu", "p", "a"), else_branch=branch("Neg", "p", "b")),
        node("Pad", "c pads", "q"),
        node("Conv", "q w", "d"),
        node("Pad", "d pads", "r"),
        node("Conv", "r w", "z"),
    ]
    weights = {"pads": integers(0, 0, 1, 1, 0, 0, 1, 1), "w": weight(3, 3, 3, 3)}
    return model(nodes, IMAGE | {"go": (T.BOOL, [])}, "y z", 13, weights)


@compiles
def nhwc_of_tf2onnx() -> onnx.ModelProto:
    nodes = [
        node("Transpose", "x", "t", perm=[0, 3, 1, 2]),
        node("Pad", "t", "p", pads=[0, 0, 0, 0, 0, 0, 1, 1]),
        node("Conv", "p w", "c", strides=[2, 2]),
        node("Clip", "c", "r", min=0.0, max=6.0),
        node("Conv", "r dw", "d", group=8, pads=[1, 1, 1, 1]),
        node("BatchNormalization", "d g s m v", "n"),
        node("Transpose", "n", "back", perm=[0, 2, 3, 1]),
        node("ReduceMean", "back", "mean", axes=[1, 2], keepdims=0),
        node("MatMul", "mean fw", "y"),
    ]
    weights = {"w": weight(8, 3, 3, 3), "dw": weight(8, 1, 3, 3), "fw": weight(8, 5)}
    norm = {"g": positive(8), "s": weight(8), "m": weight(8), "v": positive(8)}
    return model(nodes, {"x": (T.FLOAT, ["unk", 17, 17, 3])}, "y back", 9, weights | norm)


@compiles
def resize_of_opset_10_and_top_k() -> onnx.ModelProto:
    nodes = [node("Resize", "x s", "u", mode="linear"), node("TopK", "u k", "v i", axis=3)]
    weights = {"s": np.array([1, 1, 2, 1.5], np.float32), "k": integers(3)}
    return model(nodes, IMAGE, "v i", 10, weights, {"i": T.INT64})


@compiles
def resize_of_every_kind() -> onnx.ModelProto:
    ways = [
        ("sizes", {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}),
        ("sizes", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ("sizes", {"mode": "cubic"}),
        ("sizes", {"mode": "nearest"}),
        ("scales", {"mode": "linear"}),
        ("scales", {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        ("nhwc", {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}),
    ]
    inputs = {"sizes": "x none none sizes", "scales": "x none scales", "nhwc": "x none nhwc"}
    nodes = [node("Resize", inputs[kind], f"y{i}", **attributes) for i, (kind, attributes) in enumerate(ways)]
    weights = {
        "none": EMPTY,
        "sizes": integers(1, 3, 23, 11),
        "scales": np.array([1, 1, 1.7, 0.5], np.float32),
        "nhwc": np.array([1, 2, 2, 1], np.float32),
    }
    return model(nodes, {"x": (T.FLOAT, [1, 3, 9, 9])}, " ".join(f"y{i}" for i in range(len(ways))), 11, weights)


@compiles
def slices_of_opset_9() -> onnx.ModelProto:
    nodes = [
        node("Slice", "x", "a", axes=[2, -1], starts=[1, -4], ends=[-1, 2**31 - 1]),
        node("Split", "a", "b c d", axis=1),
        node("Squeeze", "b", "s", axes=[1]),
        node("Unsqueeze", "s", "y", axes=[0]),
    ]
    return model(nodes, IMAGE, "y c d", 9)


@compiles
def slices_backwards() -> onnx.ModelProto:
    weights = {"starts": integers(-1, 12), "ends": integers(-(2**63) + 1, 3), "axes": integers(2, 3)}
    steps = {"steps": integers(-1, -2)}
    return model([node("Slice", "x starts ends axes steps", "y")], IMAGE, "y", 13, weights | steps)


@compiles
def slices_of_nothing() -> onnx.ModelProto:
    nodes = [
        node("Slice", "x three one", "a"),
        node("Concat", "a x", "y", axis=0),
        node("Slice", "x zero three axes back", "z"),
    ]
    weights = {"zero": integers(0), "one": integers(1), "three": integers(3), "axes": integers(1), "back": integers(-1)}
    return model(nodes, {"x": (T.FLOAT, [4, 5])}, "y z", 13, weights)


@compiles
def squeeze_counted_from_the_back() -> onnx.ModelProto:
    """Layout conversion would read foreign memory."""
    nodes = [node("Conv", "x w", "c"), node("GlobalMaxPool", "c", "p"), node("Squeeze", "p axes", "y")]
    return model(nodes, IMAGE, "y", 13, {"w": weight(8, 3, 3, 3), "axes": integers(-1, -2)})


@compiles
def concatenation_with_nothing() -> onnx.ModelProto:
    nodes = [node("Concat", "empty x", "y", axis=1)]
    return model(nodes, {"x": (T.FLOAT, [2, 3])}, "y", 13, {"empty": np.zeros((2, 0), np.float32)})


@compiles
def shape_arithmetic() -> onnx.ModelProto:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n", "n1", axes=[0]),
        node("Concat", "n1 rest", "shape", axis=0),
        node("Reshape", "x shape", "r"),
        node("ConstantOfShape", "shape1", "o", value=numpy_helper.from_array(np.array([1.5], np.float32))),
        node("Add", "r o", "y"),
    ]
    weights = {"zero": np.array(0, np.int64), "rest": integers(-1), "shape1": integers(1, 1)}
    return model(nodes, {"x": (T.FLOAT, ["N", 3, 4, 5])}, "y", 9, weights)


@compiles
def arange_of_opset_9() -> onnx.ModelProto:
    nodes = [
        node("ConstantOfShape", "n", "ones", value=numpy_helper.from_array(np.array([1], np.int64))),
        node("NonZero", "ones", "z"),
        node("Squeeze", "z", "i", axes=[0]),
        node("Cast", "i", "f", to=T.FLOAT),
        node("Add", "x f", "y"),
    ]
    return model(nodes, {"x": (T.FLOAT, [2, 7])}, "y", 9, {"n": integers(7)})


@compiles
def condition_known_from_shapes() -> onnx.ModelProto:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Equal", "n one", "c"),
        helper.make_node(
            "If",
            ["c"],
            ["y"],
            then_branch=branch("Squeeze", "x", "a"),
            else_branch=branch("Identity", "x", "b"),
        ),
    ]
    weights = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    return model(nodes, IMAGE, "y", 11, weights)


@compiles
def softmax_of_opset_9() -> onnx.ModelProto:
    nodes = [node("Softmax", "x", "y", axis=1), node("LogSoftmax", "x", "z", axis=2)]
    return model(nodes, {"x": (T.FLOAT, [2, 3, 4, 5])}, "y z", 9)


@compiles
def dropout_with_mask_and_training_input() -> onnx.ModelProto:
    nodes = [node("Dropout", "x ratio training", "d mask"), node("Conv", "d w", "y")]
    weights = {"ratio": np.array(0.5, np.float32), "training": np.array(False), "w": weight(4, 3, 3, 3)}
    return model(nodes, IMAGE, "y mask", 13, weights, {"mask": T.BOOL})


@compiles
def mobile_net_v3_block() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w", "c", group=8, pads=[2, 2, 2, 2]),
        node("HardSwish", "c", "h"),
        node("GlobalAveragePool", "h", "p"),
        node("Conv", "p w1", "s1"),
        node("Relu", "s1", "r"),
        node("Conv", "r w2", "s2"),
        node("HardSigmoid", "s2", "g", alpha=1 / 6, beta=0.5),
        node("Mul", "h g", "y"),
    ]
    weights = {"w": weight(8, 1, 5, 5), "w1": weight(2, 8, 1, 1), "w2": weight(8, 2, 1, 1)}
    return model(nodes, {"x": (T.FLOAT, [1, 8, 11, 11])}, "y", 14, weights)


@compiles
def shuffle_net_and_grouped_convolution() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w b", "c", group=4, pads=[1, 1, 1, 1]),
        node("Reshape", "c apart", "a"),
        node("Transpose", "a", "t", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "t together", "y"),
    ]
    weights = {"w": weight(32, 4, 3, 3), "b": weight(32)}
    shapes = {"apart": integers(1, 2, 16, 7, 7), "together": integers(1, 32, 7, 7)}
    return model(nodes, {"x": (T.FLOAT, [1, 16, 7, 7])}, "y", 13, weights | shapes)


@compiles
def transposed_convolutions() -> onnx.ModelProto:
    ways: list[tuple[str, dict[str, Any]]] = [
        ("x w", {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ("x grouped b", {"strides": [3, 2], "group": 3}),
        ("x w", {"dilations": [2, 2], "strides": [2, 1]}),
        ("x w", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("x w", {"output_shape": [12, 13], "strides": [2, 2]}),
    ]
    nodes = [node("ConvTranspose", inputs, f"y{i}", **attributes) for i, (inputs, attributes) in enumerate(ways)]
    weights = {"w": weight(6, 5, 3, 3), "grouped": weight(6, 2, 3, 4), "b": weight(6)}
    return model(nodes, {"x": (T.FLOAT, [2, 6, 5, 7])}, " ".join(f"y{i}" for i in range(len(ways))), 11, weights)


@compiles
def transposed_convolution_with_computed_weights() -> onnx.ModelProto:
    nodes = [node("Conv", "x c", "a"), node("ConvTranspose", "a w", "y", strides=[2, 2])]
    inputs = {"x": (T.FLOAT, [1, 3, 7, 7]), "w": (T.FLOAT, [4, 5, 2, 2])}
    return model(nodes, inputs, "y", 11, {"c": weight(4, 3, 3, 3)})


@compiles
def wave_encoder() -> onnx.ModelProto:
    nodes = [
        node("Unsqueeze", "x one", "u"),
        node("Conv", "u w1", "a", strides=[5]),
        node("InstanceNormalization", "a g b", "n"),
        node("Erf", "n", "e"),
        node("Mul", "n e", "m"),
        node("Conv", "m w2", "c", group=8, pads=[2, 2]),
        node("Slice", "c starts ends axes", "s"),
        node("Sigmoid", "s", "y"),
    ]
    weights = {"w1": weight(16, 1, 10), "w2": weight(16, 2, 4), "g": positive(16), "b": weight(16)}
    numbers = {"one": integers(1), "starts": integers(0), "ends": integers(-1), "axes": integers(2)}
    return model(nodes, {"x": (T.FLOAT, [1, 401])}, "y", 13, weights | numbers)


@compiles
def causal_dilated_convolution() -> onnx.ModelProto:
    nodes = [
        node("Pad", "x pads", "p"),
        node("Conv", "p w b", "c", dilations=[4]),
        node("Split", "c", "a g", axis=1),
        node("Tanh", "a", "t"),
        node("Sigmoid", "g", "s"),
        node("Mul", "t s", "m"),
        node("ConvTranspose", "m wt", "y", strides=[2], pads=[1, 1]),
    ]
    weights = {"pads": integers(0, 0, 4, 0, 0, 0), "w": weight(10, 3, 2), "b": weight(10), "wt": weight(5, 7, 4)}
    return model(nodes, {"x": (T.FLOAT, [2, 3, 53])}, "y", 13, weights)


@compiles
def sentence_encoder() -> onnx.ModelProto:
    nodes = [
        node("Gather", "table ids", "e"),
        node("Cast", "mask", "m", to=T.FLOAT),
        node("Unsqueeze", "m two", "m3"),
        node("LayerNormalization", "e g b", "n", axis=-1),
        node("MatMul", "n w", "q"),
        node("Transpose", "n", "k", perm=[0, 2, 1]),
        node("MatMul", "q k", "scores"),
        node("Unsqueeze", "m one", "mr"),
        node("Equal", "mr zero", "hidden"),
        node("Where", "hidden low scores", "masked"),
        node("Softmax", "masked", "p", axis=-1),
        node("MatMul", "p n", "c"),
        node("Mul", "c m3", "cm"),
        node("ReduceSum", "cm one", "total", keepdims=0),
        node("ReduceSum", "m3 one", "count", keepdims=0),
        node("Clip", "count least", "least_one"),
        node("Div", "total least_one", "mean"),
        node("LpNormalization", "mean", "y", axis=1),
    ]
    weights = {"table": weight(50, 24), "g": positive(24), "b": weight(24), "w": weight(24, 24)}
    numbers = {"one": integers(1), "two": integers(2), "zero": np.float32(0), "low": np.float32(-1e9)}
    inputs = {"ids": (T.INT64, [2, 13]), "mask": (T.INT64, [2, 13])}
    return model(nodes, inputs, "y c", 17, weights | numbers | {"least": np.float32(1e-9)})


@compiles
def attention_of_a_prime_number_of_tokens() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w", "p", strides=[4, 4]),
        node("Reshape", "p flat", "f"),
        node("Transpose", "f", "t", perm=[0, 2, 1]),
        node("Concat", "cls t", "tokens", axis=1),
        node("MatMul", "tokens wqkv", "qkv"),
        node("Reshape", "qkv heads", "h"),
        node("Transpose", "h", "s", perm=[2, 0, 3, 1, 4]),
        *[node("Gather", f"s {i}", name, axis=0) for i, name in (("i0", "q"), ("i1", "k"), ("i2", "v"))],
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "scores"),
        node("Softmax", "scores", "a", axis=-1),
        node("MatMul", "a v", "c"),
        node("Transpose", "c", "ct", perm=[0, 2, 1, 3]),
        node("Reshape", "ct joined", "j"),
        node("Gather", "j i0", "first", axis=1),
        node("MatMul", "first classes", "y"),
    ]
    weights = {"w": weight(16, 3, 4, 4), "cls": weight(1, 1, 16), "wqkv": weight(16, 48), "classes": weight(16, 11)}
    shapes = {"flat": integers(1, 16, 16), "heads": integers(1, 17, 3, 2, 8), "joined": integers(1, 17, 16)}
    picks = {"i0": np.array(0, np.int64), "i1": np.array(1, np.int64), "i2": np.array(-1, np.int64)}
    return model(nodes, IMAGE, "y scores", 13, weights | shapes | picks)


@compiles
def causal_mask_and_cumulative_positions() -> onnx.ModelProto:
    nodes = [
        node("Trilu", "ones", "mask", upper=0),
        node("Where", "mask x low", "y"),
        node("CumSum", "ids axis", "positions"),
        node("Gather", "table positions", "e"),
        node("ReduceMax", "x", "most", keepdims=0),
    ]
    weights = {"ones": np.ones((7, 7), np.bool_), "low": np.float32(-np.inf), "axis": np.array(1, np.int64)}
    inputs = {"x": (T.FLOAT, [7, 7]), "ids": (T.INT64, [1, 5])}
    return model(nodes, inputs, "y e most", 14, weights | {"table": weight(8, 6)})


@compiles
def normalisation_operators() -> onnx.ModelProto:
    nodes = [
        node("GroupNormalization", "x g b", "n", num_groups=4),
        node("Gelu", "n", "y"),
        node("Gelu", "n", "z", approximate="tanh"),
        node("ReduceL2", "x last", "l"),
        node("ReduceMean", "x last", "m", keepdims=0),
    ]
    weights = {"g": positive(8), "b": weight(8), "last": integers(-1)}
    return model(nodes, {"x": (T.FLOAT, [2, 8, 5, 5])}, "y z l m", 21, weights)


@compiles
def layer_norm_over_channels_and_pixels() -> onnx.ModelProto:
    """Layout conversion would leave the order of scale and shift as it is."""
    nodes = [
        node("Conv", "x w", "c"),
        node("LayerNormalization", "c g b", "n", axis=1),
        node("Conv", "n v", "d"),
        node("LayerNormalization", "d h", "y", axis=0),
    ]
    weights = {"w": weight(8, 3, 3, 3), "g": positive(8, 5, 6), "b": weight(8, 5, 6), "v": weight(8, 8, 1, 1)}
    return model(nodes, {"x": (T.FLOAT, [2, 3, 7, 8])}, "y", 17, weights | {"h": positive(2, 8, 5, 6)})


@compiles
def three_dimensional_convolution() -> onnx.ModelProto:
    nodes = [node("Conv", "x w", "c", pads=[1] * 6), node("MaxPool", "c", "y", kernel_shape=[1, 2, 2])]
    return model(nodes, {"x": (T.FLOAT, [1, 3, 4, 5, 5])}, "y", 13, {"w": weight(5, 3, 3, 3, 3)})


@compiles
def super_resolution() -> onnx.ModelProto:
    nodes = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("DepthToSpace", "c", "y", blocksize=3, mode="CRD")]
    return model(nodes, {"x": (T.FLOAT, [1, 3, 7, 5])}, "y", 13, {"w": weight(9, 3, 3, 3)})


@compiles
def indexing_operators() -> onnx.ModelProto:
    nodes = [
        node("GatherND", "x pairs", "a"),
        node("ScatterND", "x pairs updates", "b"),
        node("ScatterElements", "x columns more", "c", axis=1),
        node("GatherElements", "x columns", "d", axis=1),
        node("Einsum", "x x", "e", equation="ij,kj->ik"),
        node("ArgMax", "x", "f", axis=1),
        node("Pow", "x three", "g"),
    ]
    weights = {
        "pairs": np.array([[0, 1], [2, 4]], np.int64),
        "updates": weight(2),
        "columns": np.array([[0, -1], [2, 1], [3, 0]], np.int64),
        "more": weight(3, 2),
        "three": np.array(3, np.int64),
    }
    return model(nodes, {"x": (T.FLOAT, [3, 5])}, "a b c d e f g", 13, weights, {"f": T.INT64})


@compiles
def integers_and_booleans() -> onnx.ModelProto:
    nodes = [
        node("Add", "a b", "sum"),
        node("Not", "c", "not"),
        node("Where", "c sum a", "chosen"),
        node("Cast", "c", "float", to=T.FLOAT),
        node("Cast", "pixels", "p", to=T.FLOAT),
    ]
    inputs = {"a": (T.INT32, [4]), "b": (T.INT32, [4]), "c": (T.BOOL, [4]), "pixels": (T.UINT8, [2, 3])}
    types = {"sum": T.INT32, "not": T.BOOL, "chosen": T.INT32}
    return model(nodes, inputs, "sum not chosen float p", 13, types=types)


@compiles
def comparisons_of_booleans() -> onnx.ModelProto:
    """LLVM would compare them as floats."""
    nodes = [
        node("Equal", "a b", "same"),
        node("Equal", "same yes", "chosen"),
        node("Equal", "mask chosen", "y"),
        node("ReduceMax", "y last", "some", keepdims=0),
        node("ReduceMin", "y", "every"),
    ]
    inputs = {"a": (T.BOOL, [4]), "b": (T.BOOL, [3, 1]), "mask": (T.BOOL, [3, 4])}
    weights = {"yes": np.array(True), "last": integers(-1)}
    types = dict.fromkeys(("same", "chosen", "y", "some", "every"), T.BOOL)
    return model(nodes, inputs, "same chosen y some every", 20, weights, types)


@compiles
def half_precision() -> onnx.ModelProto:
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("ReduceMean", "r", "y", axes=[2, 3])]
    weights = {"w": weight(8, 3, 3, 3).astype(np.float16)}
    return model(nodes, {"x": (T.FLOAT16, [1, 3, 9, 9])}, "y", 13, weights, {"y": T.FLOAT16})


@compiles
def double_precision() -> onnx.ModelProto:
    nodes = [
        node("MatMul", "x w", "m"),
        node("BatchNormalization", "m g s s g", "n"),
        node("Sigmoid", "n", "y"),
        node("Softmax", "m", "z"),
    ]
    weights = {
        name: value.astype(np.float64) for name, value in (("w", weight(5, 4)), ("g", positive(4)), ("s", weight(4)))
    }
    return model(nodes, {"x": (T.DOUBLE, [3, 5])}, "y z", 13, weights, {"y": T.DOUBLE, "z": T.DOUBLE})


@compiles
def inputs_and_constants_as_outputs() -> onnx.ModelProto:
    nodes = [node("Relu", "x", "y"), node("Identity", "y", "same"), node("Shape", "x", "s")]
    inputs = {"x": (T.FLOAT, [3, 5]), "unused": (T.INT64, [2])}
    return model(nodes, inputs, "y x same constant s", 13, {"constant": weight(4)}, {"s": T.INT64})


@compiles
def pools_of_same_extents() -> onnx.ModelProto:
    same = [("SAME_UPPER", 3, 2), ("SAME_LOWER", 3, 2), ("SAME_LOWER", 2, 3), ("SAME_LOWER", 2, 1)]
    nodes = [
        node("MaxPool", "x", f"y{i}", auto_pad=kind, kernel_shape=[size] * 2, strides=[stride] * 2)
        for i, (kind, size, stride) in enumerate(same)
    ]
    return model(nodes, {"x": (T.FLOAT, [1, 2, 7, 10])}, "y0 y1 y2 y3")


@compiles
def reductions_along_no_axis() -> onnx.ModelProto:
    kinds = ("L1", "L2", "LogSum", "LogSumExp", "SumSquare", "Sum")
    nodes = [node(f"Reduce{kind}", "x none", kind, noop_with_empty_axes=1) for kind in kinds[:4]]
    nodes += [node(f"Reduce{kind}", "x", kind, noop_with_empty_axes=1) for kind in kinds[4:]]
    return model(nodes, {"x": (T.FLOAT, [3, 4])}, " ".join(kinds), 18, {"none": integers()})


@compiles
def scattering_from_a_corner() -> onnx.ModelProto:
    places = np.tile(np.array([[[2, 0, 3, 1]], [[0, 1, 4, 3]]]), (1, 3, 1))
    nodes = [node("ScatterElements", "x places u", "y", axis=1)]
    weights = {"places": np.moveaxis(places, 2, 1), "u": weight(2, 4, 3)}
    return model(nodes, {"x": (T.FLOAT, [4, 5, 6])}, "y", 18, weights)


@compiles
def lstm() -> onnx.ModelProto:
    nodes = [node("LSTM", "x w r", "y", hidden_size=5)]
    return model(nodes, {"x": (T.FLOAT, [7, 1, 4])}, "y", 13, {"w": weight(1, 20, 4), "r": weight(1, 20, 5)})


@compiles
def loop() -> onnx.ModelProto:
    tensor = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", "c", "more"), node("Add", "v v", "w")],
        "body",
        [tensor("i", T.INT64, []), tensor("c", T.BOOL, []), tensor("v", T.FLOAT, [3])],
        [tensor("more", T.BOOL, []), tensor("w", T.FLOAT, [3])],
    )
    weights = {"n": np.array(4, np.int64), "go": np.array(True)}
    return model([node("Loop", "n go x", "y", body=body)], {"x": (T.FLOAT, [3])}, "y", 13, weights)


@refuses(UnsupportedModelError, "NonZero depends on the data")
def nonzero() -> onnx.ModelProto:
    return model([node("NonZero", "x", "y")], {"x": (T.FLOAT, [3, 5])}, "y", 13, types={"y": T.INT64})


@refuses(UnsupportedModelError, "NonMaxSuppression depends on the data")
def non_maximum_suppression() -> onnx.ModelProto:
    nodes = [node("NonMaxSuppression", "boxes scores most", "y")]
    inputs = {"boxes": (T.FLOAT, [1, 6, 4]), "scores": (T.FLOAT, [1, 2, 6])}
    return model(nodes, inputs, "y", 13, {"most": integers(5)}, {"y": T.INT64})


@refuses(UnsupportedModelError, "RoiAlign")
def region_of_interest() -> onnx.ModelProto:
    nodes = [node("RoiAlign", "x boxes which", "y", output_height=3, output_width=3)]
    weights = {"boxes": np.array([[0, 0, 10, 10]], np.float32), "which": integers(0)}
    return model(nodes, IMAGE, "y", 16, weights)


@compiles
def antialiasing() -> onnx.ModelProto:
    nodes = [node("Resize", "x - scales", "y", mode="linear", antialias=1)]
    return model(nodes, IMAGE, "y", 18, {"scales": np.array([1, 1, 0.5, 0.5], np.float32)})


@refuses(UnsupportedModelError, "Resize of uint8 between elements")
def resize_of_integers() -> onnx.ModelProto:
    """Fractions as weights would be cut off."""
    nodes = [node("Resize", "x - scales", "y", mode="linear")]
    weights = {"scales": np.array([1, 1, 1.5, 2], np.float32)}
    return model(nodes, {"x": (T.UINT8, [1, 3, 4, 4])}, "y", 13, weights, {"y": T.UINT8})


@refuses(ShapeError, "dynamic in axis 0 (batch), 1 (seq)")
def dynamic_sequence() -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "y")]
    return model(nodes, {"x": (T.FLOAT, ["batch", "seq", 8])}, "y", 13, {"w": weight(8, 4)})


@refuses(ModelError, "cannot load")
def convolution_in_double_precision() -> onnx.ModelProto:
    weights = {"w": weight(4, 3, 3, 3).astype(np.float64)}
    return model([node("Conv", "x w", "y")], {"x": (T.DOUBLE, [1, 3, 9, 9])}, "y", 13, weights, {"y": T.DOUBLE})


@pytest.mark.parametrize("case", COMPILE.values(), ids=COMPILE.keys())
def test_compiles_and_matches(case: Case) -> None:
    check(case())


@pytest.mark.parametrize(("case", "error", "words"), REFUSE.values(), ids=REFUSE.keys())
def test_refuses_in_one_line(case: Case, error: type[ModelError], words: str) -> None:
    with pytest.raises(error) as caught:
        load_model(case())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    proto = model([node("Conv", "x w", "y")], IMAGE, "y", 13, {"w": weight(8, 3, 3, 3)})
    path = tmp_path / "model.onnx"
    onnx.save(proto, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    check(path)


def test_missing_external_weights_are_named(tmp_path: Path) -> None:
    proto = model([node("Conv", "x w", "y")], IMAGE, "y", 13, {"w": weight(8, 3, 3, 3)})
    path = tmp_path / "model.onnx"
    onnx.save(proto, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="weights"):
        load_model(path)
