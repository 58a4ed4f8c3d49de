"""Quantised convolutions and matmuls in integers: one level from ONNX Runtime at most, with the CPU's instruction."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto as T
from tvm import relax

from slipstream.artifact.runtime import TvmExecutor
from slipstream.frontends import load_model
from slipstream.frontends.inputs import TensorSpec
from slipstream.frontends.model import Model
from slipstream.frontends.onnx_import import OnnxReference
from slipstream.graph.build import apply_programs, build
from slipstream.graph.cpu.integer_compute import Window, convolution, matmul, pack_columns
from slipstream.graph.cpu.pipeline import NAME
from slipstream.graph.forms import schedule_untuned
from slipstream.graph.prepare import prepare
from slipstream.graph.relax_walk import prim_funcs
from slipstream.machine.dot_product import AVX512_VNNI, AVX_VNNI, SDOT, DotProduct, dot_product_of
from slipstream.machine.target import Target, resolve_target
from slipstream.program.space import Space
from tests.frontends.test_onnx_models import model, node, weight

Array = np.ndarray[Any, Any]
HOST = platform.machine()
WITH_INSTRUCTION = pytest.mark.skipif(
    not dot_product_of(resolve_target()).instruction, reason="this CPU has no instruction for products of bytes"
)
TARGETS = {
    "sdot": Target("aarch64", "neoverse-n1", ("dotprod",), (), 2),
    "avx512": Target("x86_64", "cascadelake", ("avx2", "avx512f", "avx512vnni", "fma"), (), 2),
    "avx": Target("x86_64", "alderlake", ("avx2", "avxvnni", "fma"), (), 2),
}


def levels(*shape: int, dtype: Any = np.int8, low: int = -127, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).integers(low, 128, shape).astype(dtype)


def scales(count: int, largest: float = 0.01) -> Array:
    return np.linspace(largest / 4, largest, count).astype(np.float32) if count else np.array(largest, np.float32)


def convolution_model(
    channels: int,
    filters: int,
    *,
    size: int = 9,
    kernel: int = 3,
    activation: Any = np.int8,
    zero: int = 5,
    per_channel: bool = True,
    between: str = "",
    output: Any = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> Q -> DQ -> Conv (+ bias) -> Q -> DQ, with an operator before the last rounding if asked for."""
    groups = attributes.get("group", 1)
    of_channel = (filters,) if per_channel else ()
    ws = scales(filters if per_channel else 0)
    weights = {
        "xs": np.array(0.05, np.float32),
        "xz": np.array(zero, activation),
        "w": levels(filters, channels // groups, kernel, kernel),
        "ws": ws,
        "wz": np.zeros(of_channel, np.int8),
        "b": levels(filters, low=-100).astype(np.int32) * 20,
        "bs": (ws * np.float32(0.05)).astype(np.float32),
        "bz": np.zeros(of_channel, np.int32),
        "ys": np.array(0.3, np.float32),
        "yz": np.array(-zero if activation == np.int8 else 255 - zero, activation),
    }
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("DequantizeLinear", "q xs xz", "d"),
        node("DequantizeLinear", "w ws wz", "dw", axis=0),
        node("DequantizeLinear", "b bs bz", "db", axis=0),
        node("Conv", "d dw db", "c", kernel_shape=[kernel, kernel], **attributes),
        *([node(between, "c", "r")] if between else []),
        node("QuantizeLinear", f"{'r' if between else 'c'} ys yz", "yq"),
        node("DequantizeLinear", "yq ys yz", "y"),
    ]
    return model(nodes, {"x": (T.FLOAT, [1, channels, size, size])}, "y", 13, weights)


def matmul_model(length: int, columns: int, rows: int = 7, *, transposed: bool = False) -> onnx.ModelProto:
    weights = {
        "xs": np.array(0.05, np.float32),
        "xz": np.array(3, np.int8),
        "w": levels(*((columns, length) if transposed else (length, columns))),
        "ws": scales(columns),
        "wz": np.zeros(columns, np.int8),
        "ys": np.array(0.5, np.float32),
        "yz": np.array(0, np.int8),
    }
    product = node("Gemm", "d dw", "c", transB=1) if transposed else node("MatMul", "d dw", "c")
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("DequantizeLinear", "q xs xz", "d"),
        node("DequantizeLinear", "w ws wz", "dw", axis=0 if transposed else 1),
        product,
        node("QuantizeLinear", "c ys yz", "yq"),
        node("DequantizeLinear", "yq ys yz", "y"),
    ]
    return model(nodes, {"x": (T.FLOAT, [rows, length])}, "y", 13, weights)


def residual_model() -> onnx.ModelProto:
    """A block with a shortcut and a pooling, as in a residual network."""
    proto = convolution_model(16, 16, pads=[1, 1, 1, 1])
    nodes = [
        *proto.graph.node[:-2],
        node("QuantizeLinear", "c ys yz", "cq"),
        node("DequantizeLinear", "cq ys yz", "cd"),
        node("Add", "cd d", "s"),
        node("Relu", "s", "r"),
        node("QuantizeLinear", "r ys yz", "rq"),
        node("DequantizeLinear", "rq ys yz", "rd"),
        node("MaxPool", "rd", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("QuantizeLinear", "p ys yz", "pq"),
        node("DequantizeLinear", "pq ys yz", "y"),
    ]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def difference(
    proto: onnx.ModelProto, target: Target, integers: int = 1, positive: bool = False, optimised: bool = True
) -> float:
    """The largest difference from ONNX Runtime, with `integers` products in integers where there is an instruction."""
    loaded: Model = load_model(proto)
    prepared, _ = prepare(loaded.module, target)
    expected_number = integers if dot_product_of(target).instruction else 0
    assert sum("integer" in str(gv.name_hint) for gv in prim_funcs(prepared)) == expected_number
    built = build(apply_programs(prepared, target), target)
    run = TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs, target.threads)
    rng = np.random.default_rng(0)
    feed = {}
    for spec in loaded.inputs:
        values = rng.standard_normal(spec.shape) * 4
        feed[spec.name] = (np.abs(values) * 20 if positive else values).astype(np.float32)
    assert isinstance(loaded.reference, OnnxReference)
    reference = loaded.reference.outputs if optimised else loaded.reference.outputs_without_optimisation
    ((expected,),) = reference([feed])
    (actual,) = run(feed)
    assert np.ptp(expected) > 0 or expected.size == 1
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    return float(np.abs(np.asarray(actual) - expected).max())


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "signed": lambda: convolution_model(16, 8, pads=[1, 1, 1, 1]),
    "unsigned": lambda: convolution_model(16, 8, activation=np.uint8, zero=120, pads=[1, 1, 1, 1]),
    "per tensor": lambda: convolution_model(8, 8, per_channel=False),
    "three channels": lambda: convolution_model(3, 8, kernel=5, pads=[2, 2, 2, 2], strides=[2, 2]),
    "odd sizes": lambda: convolution_model(20, 6, kernel=1),
    "relu": lambda: convolution_model(12, 8, between="Relu"),
    "depthwise": lambda: convolution_model(16, 16, group=16, pads=[1, 1, 1, 1]),
    "groups": lambda: convolution_model(32, 64, group=2, pads=[1, 1, 1, 1]),
    "dilated": lambda: convolution_model(8, 8, dilations=[2, 2]),
    "matmul": lambda: matmul_model(32, 24),
    "gemm": lambda: matmul_model(48, 10, transposed=True),
    "odd matmul": lambda: matmul_model(19, 5),
    "one row": lambda: matmul_model(64, 100, rows=1),
    "residual": residual_model,
}
SCALE = {"residual": 0.3, "matmul": 0.5, "gemm": 0.5, "odd matmul": 0.5, "one row": 0.5}


# Variations of others.
SLOW = ("per tensor", "odd sizes", "dilated", "relu", "odd matmul")


@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
def test_one_level_from_onnx_runtime(case: str) -> None:
    assert difference(CASES[case](), resolve_target(threads=2)) <= SCALE.get(case, 0.3) * 1.001


@pytest.mark.parametrize("case", ["unsigned", "matmul"])
def test_without_the_instruction(case: str) -> None:
    plain = {"x86_64": "cpu:x86-64", "aarch64": "cpu:generic"}[HOST]
    target = resolve_target(plain, threads=2)
    assert not dot_product_of(target).instruction
    assert difference(CASES[case](), target) <= SCALE.get(case, 0.3) * 1.001


def test_weights_with_a_zero_point_stay_in_float() -> None:
    proto = convolution_model(8, 8, per_channel=False)
    (zero,) = [tensor for tensor in proto.graph.initializer if tensor.name == "wz"]
    zero.CopyFrom(onnx.numpy_helper.from_array(np.array(7, np.int8), "wz"))
    assert difference(proto, resolve_target(threads=2), integers=0) <= 0.3 * 1.001


@WITH_INSTRUCTION
def test_layers_of_one_shape_are_one_operator() -> None:
    """Scales and zero points are arguments, not code."""
    first = load_model(convolution_model(16, 8, zero=5))
    second = load_model(convolution_model(16, 8, zero=9))
    target = resolve_target(threads=2)
    texts = [
        {str(func) for func in prim_funcs(prepare(loaded.module, target)[0]).values()} for loaded in (first, second)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("name", "instruction"), [("sdot", "sdot"), ("avx512", "vpdpbusd\t"), ("avx", "vpdpbusd\t")])
@pytest.mark.parametrize("kind", ["convolution", "matmul"])
def test_the_instruction_is_in_the_code(name: str, instruction: str, kind: str) -> None:
    target = TARGETS[name]
    dot = dot_product_of(target)
    assert dot is {"sdot": SDOT, "avx512": AVX512_VNNI, "avx": AVX_VNNI}[name]
    func = _function(kind, dot)
    library = tvm.compile(
        tvm.IRModule({"f": schedule_untuned(func, target).with_attr("global_symbol", "f")}),
        target=target.tvm,
        tir_pipeline=NAME,
    )
    assert instruction.strip() in library.mod.inspect_source("asm")


@pytest.mark.parametrize("name", ["sdot", "avx512", "avx"])
@pytest.mark.parametrize("kind", ["convolution", "matmul"])
def test_every_program_in_the_space_has_the_instruction_and_compiles(name: str, kind: str) -> None:
    """MetaSchedule's own sketches for these CPUs use intrinsics that do not."""
    target = TARGETS[name]
    space = Space("product", _function(kind, dot_product_of(target)), target)
    assert space.sketches
    for program in space.sketches:
        assert program.sketch.has_instruction
        realized = space.realize(program)
        assert realized is not None
        tvm.compile(realized.module, target=target.tvm, tir_pipeline=NAME)


def _function(kind: str, dot: DotProduct) -> Any:
    from tvm import te

    data = te.placeholder((1, 8, 8, 32) if kind == "convolution" else (16, 64), dot.data_type, name="data")
    if kind == "convolution":
        packed = pack_columns(levels(32, 3, 3, 32), dot)
        weights = te.placeholder(packed.shape, "int8", name="weights")
        zero = te.placeholder((1,), dot.data_type, name="zero")
        window = Window((3, 3), (1, 1), (1, 1, 1, 1), (1, 1))
        return te.create_prim_func([data, weights, zero, convolution(data, weights, zero, window, dot)])
    weights = te.placeholder(pack_columns(levels(32, 64), dot).shape, "int8", name="weights")
    return te.create_prim_func([data, weights, matmul(data, weights, dot)])


def test_qlinear_operators_are_integer_products_too() -> None:
    weights = {
        "xs": np.array(0.05, np.float32),
        "xz": np.array(120, np.uint8),
        "w": levels(8, 16, 3, 3),
        "ws": scales(8),
        "wz": np.zeros(8, np.int8),
        "b": levels(8, low=-100).astype(np.int32) * 20,
        "ys": np.array(0.3, np.float32),
        "yz": np.array(128, np.uint8),
        "m": levels(392, 12),
        "ms": np.array(0.01, np.float32),
        "mz": np.array(0, np.int8),
        "zs": np.array(2.0, np.float32),
    }
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("QLinearConv", "q xs xz w ws wz ys yz b", "c", kernel_shape=[3, 3]),
        node("Flatten", "c", "f"),
        node("QLinearMatMul", "f ys yz m ms mz zs yz", "p"),
        node("DequantizeLinear", "p zs yz", "y"),
    ]
    proto = model(nodes, {"x": (T.FLOAT, [1, 16, 9, 9])}, "y", 13, weights)
    assert difference(proto, resolve_target(threads=2), integers=2) <= 2.0 * 1.001


def test_a_dynamically_quantised_matmul_is_an_integer_product() -> None:
    """Sums of 600 products, more than float32 can hold exactly, with a zero point that depends on the data."""
    weights = {"b": levels(600, 24), "bz": np.array(0, np.int8), "s": np.array(0.01, np.float32)}
    nodes = [
        node("DynamicQuantizeLinear", "x", "q qs qz"),
        node("MatMulInteger", "q b qz bz", "m"),
        node("Cast", "m", "f", to=T.FLOAT),
        node("Mul", "qs s", "scale"),
        node("Mul", "f scale", "y"),
    ]
    proto = model(nodes, {"x": (T.FLOAT, [5, 600])}, "y", 13, weights)
    assert difference(proto, resolve_target(threads=2)) < 1e-2


@pytest.mark.parametrize("dynamic", [True, False])
def test_convinteger_is_an_integer_product(dynamic: bool) -> None:
    """With a border of the zero point; sums of fewer than 2**24 are exact."""
    weights = {"w": levels(8, 160, 3, 3, low=100), "wz": np.array(0, np.int8), "qz": np.array(3, np.uint8)}
    rounded = [node("DynamicQuantizeLinear", "x", "q qs dz")] if dynamic else [node("Cast", "x", "q", to=T.UINT8)]
    convolution = node("ConvInteger", f"q w {'dz' if dynamic else 'qz'} wz", "y", pads=[1, 1, 1, 1])
    proto = model([*rounded, convolution], {"x": (T.FLOAT, [1, 160, 5, 5])}, "y", 13, weights, {"y": T.INT32})
    assert difference(proto, resolve_target(threads=2), positive=True) == 0


@pytest.mark.parametrize("activation", [np.int8, np.uint8])
def test_a_product_of_two_activations_is_an_integer_product(activation: Any) -> None:
    shift = 128 if activation == np.uint8 else 0
    weights = {
        "xs": np.array(0.05, np.float32),
        "xz": np.array(5 + shift, activation),
        "ts": np.array(0.04, np.float32),
        "tz": np.array(shift - 9, activation),
        "ys": np.array(1.0, np.float32),
        "yz": np.array(shift, activation),
    }
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("DequantizeLinear", "q xs xz", "d"),
        node("Transpose", "x", "t", perm=[0, 1, 3, 2]),
        node("QuantizeLinear", "t ts tz", "tq"),
        node("DequantizeLinear", "tq ts tz", "td"),
        node("MatMul", "d td", "m"),
        node("QuantizeLinear", "m ys yz", "yq"),
        node("DequantizeLinear", "yq ys yz", "y"),
    ]
    proto = model(nodes, {"x": (T.FLOAT, [1, 3, 16, 24])}, "y", 13, weights)
    assert difference(proto, resolve_target(threads=2)) <= 1.0 * 1.001


def float32(number: float, rank: int = 0) -> Array:
    return np.full([1] * rank, number, np.float32)


# (zero point, scale) of bytes in the dot product's type, which have four rows.
NO_ZERO_POINTS: dict[str, tuple[Array, Array]] = {
    "a fraction": (float32(7.5), float32(0.05)),
    "out of range above": (float32(300), float32(0.05)),
    "out of range below": (float32(-200), float32(0.05)),
    "one for each row": (np.arange(4, dtype=np.float32).reshape(4, 1), float32(0.05)),
    "of more axes": (float32(7, rank=3), float32(0.05)),
    "a scale of more axes": (float32(7), float32(0.05, rank=3)),
}


@pytest.mark.parametrize("case", NO_ZERO_POINTS)
def test_what_is_subtracted_from_bytes_need_be_no_zero_point(case: str) -> None:
    target = resolve_target(threads=2)
    m, k = NO_ZERO_POINTS[case]
    assert difference(subtracting_model([], {"m": m, "k": k}, target), target, integers=0, optimised=False) < 1e-3


@pytest.mark.parametrize("axes", [[0], [0, 1]])
def test_a_mean_that_is_subtracted_from_bytes_is_no_zero_point(axes: list[int]) -> None:
    target = resolve_target(threads=2)
    proto = subtracting_model([node("ReduceMean", "f", "m", axes=axes)], {"k": float32(0.05)}, target)
    assert difference(proto, target, integers=0, optimised=False) < 1e-3


def test_a_zero_point_subtracted_by_hand() -> None:
    target = resolve_target(threads=2)
    proto = subtracting_model([], {"m": float32(7), "k": float32(0.05)}, target)
    assert difference(proto, target, optimised=False) < 1e-3


def subtracting_model(
    subtracted: list[onnx.NodeProto], given: dict[str, Array], target: Target, dtype: int = T.FLOAT
) -> onnx.ModelProto:
    """x -> Q -> DQ -> Q -> Cast, (- m) * k, MatMul with quantised weights.

    The scale is a power of two, so that both round alike. ONNX Runtime's optimised product rounds the data once more.
    """
    weights = {
        "xs": float32(0.0625),
        "xz": np.array(3, dot_product_of(target).data_type),
        "w": levels(64, 16),
        "ws": float32(0.01),
        "wz": np.array(0, np.int8),
    }
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("DequantizeLinear", "q xs xz", "qd"),
        node("Relu", "qd", "r"),
        node("QuantizeLinear", "r xs xz", "rq"),
        node("Cast", "rq", "f", to=dtype),
        *subtracted,
        node("Sub", "f m", "c"),
        node("Mul", "c k", "d"),
        node("DequantizeLinear", "w ws wz", "dw"),
        node("MatMul", "d dw", "y"),
    ]
    return model(nodes, {"x": (T.FLOAT, [4, 64])}, "y", 13, weights | given)


@pytest.mark.parametrize("dtype", [T.INT32, T.DOUBLE, T.FLOAT16])
def test_bytes_that_are_no_float32_afterwards(dtype: int) -> None:
    target = resolve_target(threads=2)
    own = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    proto = subtracting_model([], {"m": np.array(7, own), "k": np.array(5, own)}, target, dtype)
    del proto.graph.node[-2:]
    proto.graph.node[-1].output[0] = "y"
    proto.graph.output[0].type.tensor_type.elem_type = dtype
    assert difference(proto, target, integers=0) == 0


def test_the_largest_of_levels_is_the_smallest_value_where_the_scale_is_negative() -> None:
    target = resolve_target(threads=2)
    shape = np.array([1, 1, 4, 64])
    proto = subtracting_model([], {"m": float32(7), "k": float32(-0.05), "s": shape}, target)
    del proto.graph.node[-2:]
    proto.graph.node.extend([node("Reshape", "d s", "r4"), node("MaxPool", "r4", "y", kernel_shape=[2, 2])])
    assert difference(proto, target, integers=0) < 1e-6


@pytest.mark.parametrize("between", ["Add", "Max"])
def test_an_operand_of_more_axes_than_the_product(between: str) -> None:
    proto = matmul_model(32, 16)
    other = weight(1, 1, 16) if between == "Add" else np.zeros((1, 1, 1), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(other, "other"))
    proto.graph.node.insert(4, node(between, "c other", "more"))
    proto.graph.node[5].input[0] = "more"
    assert difference(proto, resolve_target(threads=2)) <= 0.5 * 1.001


def activations_model(left: list[int], right: list[int]) -> onnx.ModelProto:
    """A product of two quantised inputs."""
    weights = {"s": float32(0.0625), "z": np.array(0, np.uint8)}
    nodes = [
        *(node("QuantizeLinear", f"{name} s z", f"{name}q") for name in "ab"),
        *(node("DequantizeLinear", f"{name}q s z", f"{name}d") for name in "ab"),
        node("MatMul", "ad bd", "y"),
    ]
    return model(nodes, {"a": (T.FLOAT, left), "b": (T.FLOAT, right)}, "y", 13, weights)


@pytest.mark.parametrize(("left", "right"), [([64], [64, 16]), ([16, 64], [64]), ([64], [64])])
def test_a_product_with_a_vector(left: list[int], right: list[int]) -> None:
    assert difference(activations_model(left, right), resolve_target(threads=2), integers=0) < 1e-2


def test_sums_that_integers_do_not_hold_stay_in_float() -> None:
    """ONNX Runtime's own integer product exceeds its range too."""
    length = 40_000
    of_activations = activations_model([1, length], [length, 16])
    of_weights = matmul_model(2 * length, 4, rows=1)
    (weights,) = [tensor for tensor in of_weights.graph.initializer if tensor.name == "w"]
    weights.CopyFrom(onnx.numpy_helper.from_array(np.full((2 * length, 4), 127, np.int8), "w"))
    del of_weights.graph.node[-2:]
    of_weights.graph.node[-1].output[0] = "y"
    for proto in (of_activations, of_weights):
        target = resolve_target(threads=2)
        # Of about 10**7, in float32.
        assert difference(proto, target, integers=0, positive=True, optimised=False) < 1e3


# Factor, limits and zero point of a rounding to bytes, after ReLU or not.
ROUNDINGS: dict[str, tuple[float, float, float, float, bool]] = {
    "the levels again, but fewer of them": (16.0, -3.0, 9.0, 7.0, False),
    "a fraction as zero point": (8.0, 10.0, 50.0, -7.75, False),
    "a negative factor": (-8.0, -50.0, 50.0, 60.0, True),
    "all above ReLU's bound clipped": (8.0, -50.0, -5.0, 60.0, True),
}


@pytest.mark.parametrize("case", ROUNDINGS)
def test_a_rounding_to_bytes_that_is_no_quantisation(case: str) -> None:
    """In arithmetic, as a module of TVM may have it."""
    factor, low, high, zero, positive = ROUNDINGS[case]
    target = resolve_target(threads=2)
    dtype = dot_product_of(target).data_type
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4, 64), dtype))

    def number(value: float) -> Any:
        return relax.const(np.float32(value))

    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(relax.op.subtract(builder.emit(relax.op.astype(x, "float32")), number(7)))
            value = builder.emit(relax.op.multiply(value, number(0.0625)))
            if positive:
                value = builder.emit(relax.op.nn.relu(builder.emit(relax.op.minimum(value, number(3)))))
            value = builder.emit(relax.op.multiply(value, number(factor)))
            value = builder.emit(relax.op.minimum(builder.emit(relax.op.maximum(value, number(low))), number(high)))
            value = builder.emit(relax.op.add(builder.emit(relax.op.round(value)), number(zero)))
            result = builder.emit_output(relax.op.astype(value, dtype))
        builder.emit_func_output(result)
    prepared, _ = prepare(builder.get(), target)
    built = build(apply_programs(prepared, target), target)
    inputs, outputs = ((TensorSpec(name, (4, 64), dtype),) for name in "xy")
    run = TvmExecutor(built.executable, built.weights, inputs, outputs, target.threads)
    data = np.random.default_rng(0).integers(0, 128, (4, 64)).astype(dtype)
    (actual,) = run({"x": data})
    expected = (data.astype(np.float32) - 7) / 16
    expected = np.clip(expected, 0, 3) if positive else expected
    expected = np.round(np.clip(expected * factor, low, high)) + zero
    np.testing.assert_array_equal(actual, expected.astype(dtype))


@WITH_INSTRUCTION
def test_a_chain_of_functions_of_one_byte_is_a_table() -> None:
    """A GELU as the quantiser leaves it, with roundings between its operators."""
    weights = {"root": np.array(2**0.5, np.float32), "one": np.array(125, np.int8), "half": np.array(0.5, np.float32)}
    for name, scale, zero in (("x", 0.05, 3), ("e", 0.008, 0), ("a", 0.016, -128), ("m", 0.06, -100), ("y", 0.03, -90)):
        weights |= {f"{name}s": np.array(scale, np.float32), f"{name}z": np.array(zero, np.int8)}

    def rounded(value: str, name: str) -> list[onnx.NodeProto]:
        scale = f"{name}s {name}z"
        return [
            node("QuantizeLinear", f"{value} {scale}", f"{value}_q"),
            node("DequantizeLinear", f"{value}_q {scale}", f"{value}_d"),
        ]

    nodes = [
        *rounded("x", "x"),
        node("Div", "x_d root", "s"),
        node("Erf", "s", "e"),
        *rounded("e", "e"),
        node("DequantizeLinear", "one es ez", "one_d"),
        node("Add", "e_d one_d", "a"),
        *rounded("a", "a"),
        node("Mul", "x_d a_d", "m"),
        *rounded("m", "m"),
        node("Mul", "m_d half", "y"),
        *rounded("y", "y"),
    ]
    proto = model(nodes, {"x": (T.FLOAT, [4, 64])}, "y_d", 13, weights)
    assert difference(proto, resolve_target(threads=2), integers=0) <= 0.03 * 1.001
    module = prepare(load_model(proto).module, resolve_target(threads=2))[0]
    texts = [str(func) for func in prim_funcs(module).values()]
    assert any("looked_up" in text for text in texts)
    assert not any(word in text for text in texts for word in ("erf", "requantised", "T_add", "T_multiply"))
