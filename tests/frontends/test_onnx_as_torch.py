"""Every translation against ONNX Runtime, operator by operator and on whole networks."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from slipstream.errors import ShapeError, UnsupportedModelError

torch = pytest.importorskip("torch")

from slipstream.frontends.onnx_as_torch import as_torch  # noqa: E402
from slipstream.frontends.onnx_as_torch.table import TABLE  # noqa: E402

F = torch.nn.functional
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@dataclass
class Case:
    """One node. An input is a shape (random floats), an array, a `Const` (initialiser) or None (absent)."""

    op: str
    opset: int
    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}"

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The node as a model, and what to feed it."""
        rng = np.random.default_rng(0)
        names, feed, consts = [], {}, {}
        for index, item in enumerate(self.inputs):
            name = "" if item is None else f"x{index}"
            names.append(name)
            if isinstance(item, Const):
                consts[name] = item.array
            elif item is not None:
                is_shape = isinstance(item, tuple)
                feed[name] = np.asarray(rng.standard_normal(item), np.float32) if is_shape else item
        outputs = [f"y{index}" for index in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, name="node", **self.attrs)
        return model_of([node], feed, consts, outputs, self.opset), feed


class Const:
    def __init__(self, value: Any) -> None:
        self.array = np.asarray(value)


def f32(*values: float, shape: tuple[int, ...] | None = None) -> np.ndarray:
    return np.array(values, np.float32).reshape(shape if shape is not None else len(values))


def ints(*values: int) -> Const:
    return Const(np.array(values, np.int64))


def weights(*shape: int) -> Const:
    return Const(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


def number(value: float) -> Const:
    return Const(np.float32(value))


def cases(op: str, opsets: int | tuple[int, ...], *inputs: Any, outputs: int = 1, **attrs: Any) -> list[Case]:
    opsets = (opsets,) if isinstance(opsets, int) else opsets
    return [Case(op, opset, inputs, attrs, outputs) for opset in opsets]


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    consts: dict[str, np.ndarray],
    outputs: list[str],
    opset: int,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in consts.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def expected(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, feed)


def check(
    model: onnx.ModelProto, feed: dict[str, np.ndarray], rtol: float = 1e-4, atol: float = 1e-5
) -> tuple[Any, list[np.ndarray]]:
    """Compares torch with ONNX Runtime; returns the torch module and ONNX Runtime's outputs."""
    module = as_torch(model)
    with torch.inference_mode():
        got = module(*(torch.from_numpy(array) for array in feed.values()))
    wanted = expected(model, feed)
    assert isinstance(got, tuple)
    assert len(got) == len(wanted)
    for have, want in zip(got, wanted, strict=True):
        assert have.numpy().dtype == want.dtype
        assert tuple(have.shape) == want.shape
        np.testing.assert_allclose(have.numpy(), want, rtol, atol)
    return module, wanted


X = (2, 3, 4, 5)
IMAGE = (1, 4, 9, 8)
FLAGS = np.random.default_rng(1).integers(0, 2, (3, 4)).astype(bool)
NUMBERS = np.random.default_rng(2).integers(-3, 4, (3, 4))
WHOLE = np.array([[7, -7, 5], [-5, 1, 8]], np.int64)
POSITIVE = np.random.default_rng(3).uniform(0.1, 2, (3, 4)).astype(np.float32)
HALF = np.random.default_rng(4).standard_normal((3, 4)).astype(np.float16)

SCALES = Const(f32(1, 1, 2, 3))
WINDOW = {"kernel_shape": [3, 2], "strides": [2, 2]}
CORNERS = {"coordinate_transformation_mode": "align_corners"}
MEAN, VARIANCE = Const(f32(0.1, 0.2, 0.3)), Const(f32(1.0, 2.0, 0.5))

# Each operator once, and again where an older version or an attribute takes another way through its translation.
UNARY = ["Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Neg",
         "Relu", "Round", "Sigmoid", "Sin", "Softplus", "Tanh", "Transpose", "GlobalAveragePool", "GlobalMaxPool",
         "Flatten", "Shape", "LogSoftmax", "Gelu"]  # fmt: skip
ELEMENTWISE = [
    *(c for op in UNARY for c in cases(op, 20, X)),
    *(c for op in ("Log", "Sqrt", "Reciprocal") for c in cases(op, 13, POSITIVE)),
    *(c for op in ("Add", "Sub", "Mul", "Div", "Pow") for c in cases(op, 14, (3, 4), Const(POSITIVE[:1] * 0 + 2))),
    *(c for op in ("Sub", "Max") for c in cases(op, 13, number(0.3), X)),
    *(c for op in ("Min", "Max", "Sum", "Mean") for c in cases(op, 13, X, (5,), (3, 1, 1))),
    *(c for op in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual") for c in cases(op, 16, (3, 4), number(0.0))),
    *(c for op in ("And", "Or") for c in cases(op, 7, FLAGS, FLAGS[:1])),
    *cases("Not", 7, FLAGS),
    *cases("Equal", 13, NUMBERS, ints(1)),
    *cases("Mul", 13, HALF, Const(np.float16(0.3))),
    *cases("Div", 13, WHOLE, Const(np.int64(2))),
    *cases("Pow", 15, WHOLE, number(2.0)),
    *cases("HardSigmoid", 11, (50,), alpha=1 / 6, beta=0.5),
    *cases("Gelu", 20, X, approximate="tanh"),
    *cases("PRelu", 16, X, weights(3, 1, 1)),
    *cases("Clip", 7, X, min=-0.5, max=0.7),
    *cases("Clip", 13, X, None, number(0.1)),
    *cases("Where", 9, FLAGS, (3, 4), number(-np.inf)),
    *cases("Cast", 13, X, to=TensorProto.INT32),
]
LINEAR = [
    *cases("MatMul", 13, (2, 3, 4), weights(4, 5)),
    *cases("MatMul", 13, (2, 3, 4), (2, 4, 5)),
    *cases("Gemm", 13, (3, 4), weights(4, 5), weights(1, 5), alpha=0.5, beta=0.3),
    *cases("Gemm", 13, (4, 3), weights(4, 5), weights(3, 1), transA=1),
    *cases("Einsum", 12, (2, 3, 4), (2, 4, 5), equation="bij,bjk->bik"),
]
WINDOWS = [
    *cases("Conv", 11, IMAGE, weights(8, 2, 3, 2), group=2, dilations=[2, 1], pads=[0, 1, 2, 0]),
    *cases("Conv", 11, IMAGE, weights(2, 4, 4, 3), auto_pad="SAME_LOWER", strides=[2, 2]),
    *cases("Conv", 11, (1, 4, 9), weights(4, 1, 3), group=4, pads=[1, 1]),
    *cases("ConvTranspose", 11, IMAGE, weights(4, 3, 3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
    *(
        c
        for op in ("MaxPool", "AveragePool")
        for c in (
            *cases(op, 19, IMAGE, **WINDOW, pads=[1, 1, 1, 1]),
            *cases(op, 11, IMAGE, **WINDOW, pads=[0, 1, 1, 0], ceil_mode=1),
            *cases(op, 11, IMAGE, **WINDOW, auto_pad="SAME_UPPER"),
        )
    ),
    *cases("AveragePool", 19, IMAGE, **WINDOW, pads=[1, 0, 0, 1], count_include_pad=1, ceil_mode=1),
]
NORMS = [
    *cases("BatchNormalization", 15, X, weights(3), weights(3), MEAN, VARIANCE, epsilon=1e-3),
    *cases("InstanceNormalization", 7, X, weights(3), weights(3)),
    *cases("LRN", 13, (1, 8, 5, 5), size=5, alpha=0.5, beta=0.7, bias=1.5),
    *cases("LayerNormalization", 17, X, weights(5), weights(4, 5), axis=-2),
    *(c for opset in (11, 13) for c in cases("Softmax", opset, X, axis=2)),
    *(
        c
        for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")
        for c in (*cases(op, 13, X, axes=[-1], keepdims=0), *cases(op, 18, X, ints(2, -3)))
    ),
    *cases("ReduceSum", 13, X, ints(1, -1), keepdims=0),
    *(c for op in ("ArgMax", "ArgMin") for c in cases(op, 13, X, axis=-2, keepdims=0)),
]
LAYOUT = [
    *cases("Concat", 13, X, weights(2, 3, 4, 1), axis=-1),
    *cases("Split", 11, (2, 6), outputs=2, axis=-1, split=[2, 4]),
    *cases("Split", 18, (7, 2), outputs=3, num_outputs=3),
    *cases("Reshape", 14, X, ints(0, -1, 2)),
    *cases("Squeeze", 13, (1, 3, 1), ints(-1)),
    *cases("Unsqueeze", 13, X, ints(-1, 1)),
    *cases("Expand", 13, (3, 1), ints(2, 1, 4)),
    *cases("Tile", 13, (2, 3), ints(2, 1)),
    *cases("Constant", 13, value=numpy_helper.from_array(f32(1.0, 2.0))),
    *cases("ConstantOfShape", 9, ints(2, 3)),
    *cases("Dropout", 12, X, outputs=2),
    *cases("Slice", 7, X, starts=[1, -3], ends=[3, 100], axes=[1, 3]),
    *cases("Slice", 13, X, ints(3, 0), ints(1, 4), ints(2, 3), ints(1, 2)),
    *cases("Gather", 13, X, ints(0, -1), axis=1),
    *cases("Gather", 13, X, Const(np.int64(-1)), axis=2),
    *cases("Gather", 13, weights(9, 4), WHOLE.astype(np.int32)),
    *cases("Pad", 18, X, ints(1, 2, 0, 1), None, ints(3, -3)),
    *cases("Pad", 13, X, ints(0, 0, 1, 2, 0, 0, 3, 0), mode="reflect"),
    *cases("Resize", 13, X, None, SCALES),
    *cases("Resize", 13, X, None, SCALES, coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    *cases("Resize", 13, X, None, None, ints(2, 3, 7, 4), mode="linear"),
    *cases("Resize", 18, X, None, None, ints(8, 3), mode="linear", axes=[2, 3], **CORNERS),
]
ALL = [*ELEMENTWISE, *LINEAR, *WINDOWS, *NORMS, *LAYOUT]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_operator(case: Case) -> None:
    check(*case.model())


def test_every_translation_is_tested() -> None:
    assert {case.op for case in ALL} == set(TABLE)


def light_model(name: str, folder: Path) -> onnx.ModelProto:
    """One of onnx's own light models, optimised as a user's model would be, with random weights."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(LIGHT / f"light_{name}.onnx"), options, ["CPUExecutionProvider"])
    model = onnx.load(options.optimized_model_filepath)
    last = model.graph.node[-1]
    if last.op_type == "Softmax":  # random weights saturate it, and then anything would pass
        model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name=last.input[0]))
        model.graph.node.remove(last)
    used = {name for node in model.graph.node for name in node.input}
    kept = [item for item in model.graph.input if item.name in used]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    rng = np.random.default_rng(0)
    for item in model.graph.initializer:
        if item.data_type == TensorProto.FLOAT:
            shape = tuple(item.dims)
            values = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(max(np.prod(shape[1:]), 1)))
            # One-dimensional weights may be variances, which must be positive.
            values = np.abs(values) if len(shape) < 2 else values
            item.CopyFrom(numpy_helper.from_array(values, item.name))
    return model


@pytest.mark.parametrize("name", ["squeezenet", "inception_v1", "shufflenet"])
def test_whole_network(name: str, tmp_path: Path) -> None:
    model = light_model(name, tmp_path)
    (item,) = (i for i in model.graph.input if i.name not in {c.name for c in model.graph.initializer})
    shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
    image = np.random.default_rng(1).standard_normal(shape, np.float32)
    _, (wanted, *_) = check(model, {item.name: image}, rtol=1e-3, atol=1e-4)
    assert np.median(np.abs(wanted)) > 0.1  # far above the tolerance


def small_network() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A convolution, a shape computation, a product with its bias added, and two outputs."""
    nodes = [
        helper.make_node("Conv", ["image", "filter"], ["a"], pads=[0, 0, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Shape", ["b"], ["size"]),
        helper.make_node("Gather", ["size", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "zero_axis"], ["batch_1d"]),
        helper.make_node("Concat", ["batch_1d", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["b", "target"], ["c"]),
        helper.make_node("MatMul", ["c", "matrix"], ["d"]),
        helper.make_node("Add", ["bias", "d"], ["e"]),
        helper.make_node("Cast", ["e"], ["f"], to=TensorProto.FLOAT16),
        helper.make_node("ArgMax", ["e"], ["best"], axis=-1),
        helper.make_node("Softmax", ["f"], ["g"]),
    ]
    consts = {
        "filter": weights(3, 2, 2, 2).array,
        "zero": np.array(0),
        "zero_axis": np.array([0]),
        "rest": np.array([3, -1]),
        "matrix": weights(16, 5).array,
        "bias": weights(5).array,
    }
    feed = {"image": np.random.default_rng(0).standard_normal((2, 2, 4, 4), np.float32)}
    return model_of(nodes, feed, consts, ["g", "best"], 13), feed


def test_small_network_is_idiomatic_torch() -> None:
    model, feed = small_network()
    module, _ = check(model, feed, rtol=1e-2, atol=1e-3)
    assert not module.training
    calls = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert calls[:5] == [F.pad, F.conv2d, F.relu, torch.reshape, F.linear]
    assert operator.add not in calls
    assert {tuple(b.shape) for b in module.buffers()} == {(3, 2, 2, 2), (5, 16), (5,)}
    assert all(buffer.is_contiguous() for buffer in module.buffers())


def test_one_graph_without_breaks() -> None:
    model, feed = small_network()
    module, image = as_torch(model), torch.from_numpy(feed["image"])
    wanted = module(image)
    exported = torch.export.export(module, (image,), strict=False).module()
    whole = torch.compile(module, backend="eager", fullgraph=True)  # needs no C++ compiler
    for captured in (exported, whole):
        for have, want in zip(captured(image), wanted, strict=True):
            assert torch.equal(have, want)


def test_product_read_twice_keeps_its_own_value() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    feed = {"x": np.random.default_rng(0).standard_normal((2, 4), np.float32)}
    consts = {"w": weights(4, 5).array, "b": weights(5).array}
    check(model_of(nodes, feed, consts, ["p", "y"], 13), feed)


def test_input_with_initialiser_is_not_an_argument() -> None:
    feed = {"x": np.ones((2, 3), np.float32)}
    model = model_of([helper.make_node("Add", ["w", "x"], ["y"])], feed, {"w": weights(3).array}, ["y"], 13)
    model.graph.input.insert(0, helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    check(model, feed)


def test_bfloat16_weights() -> None:
    feed = {"x": np.ones((2,), np.float32)}
    model = model_of([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)], feed, {}, ["y", "w"], 13)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.BFLOAT16, [2], [1.5, -2.0]))
    cast, constant = as_torch(model)(torch.ones(2))
    assert cast.dtype == constant.dtype == torch.bfloat16
    assert constant.tolist() == [1.5, -2.0]


def test_all_missing_operators_are_named_at_once() -> None:
    nodes = [
        *(helper.make_node("Det", ["x"], [f"d{i}"]) for i in range(3)),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("FusedConv", ["x"], ["f"], domain="com.microsoft"),
    ]
    model = model_of(nodes, {"x": np.ones((2, 2), np.float32)}, {}, ["r"], 13)
    with pytest.raises(UnsupportedModelError) as caught:
        as_torch(model)
    message = "torch baseline has no translation for: Det (3 nodes), com.microsoft.FusedConv (1 node)"
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Resize", 13, (X, None, SCALES), {"mode": "cubic"}), "mode cubic"),
        (Case("Resize", 13, (X, None, Const(f32(1, 1, 0.5, 1.5)))), "mode nearest|whole length"),
        (Case("Slice", 13, (X, ints(-1), ints(0), ints(3), ints(-1))), "negative steps"),
        (Case("Resize", 13, (X,)), "neither scales nor sizes"),
        (Case("MaxPool", 13, (IMAGE,), {"kernel_shape": [2, 2]}, outputs=2), "Indices"),
        (Case("AveragePool", 19, (IMAGE,), {"kernel_shape": [2, 2], "dilations": [2, 2]}), "dilations"),
        (Case("LRN", 13, (IMAGE,), {"size": 2}), "even window"),
        (Case("Reshape", 13, (X, np.array([-1]))), "input 1 is not constant"),
        (Case("Reshape", 13, (X, ints(7, -1))), "invalid for input of size"),
        (Case("Conv", 13, ((1, 1), weights(1, 1))), "0 spatial axes"),
    ],
    ids=str,
)
def test_uncovered_variants_are_refused(case: Case, reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{case.op} 'node': .*{reason}"):
        as_torch(case.model()[0])


def test_dynamic_input_is_refused() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": np.ones((2,), np.float32)}, {}, ["y"], 13)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with pytest.raises(ShapeError, match="'x'"):
        as_torch(model)
