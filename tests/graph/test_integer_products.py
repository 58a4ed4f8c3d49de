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

from slipstream.artifact.runtime import TvmExecutor
from slipstream.frontends import load_model
from slipstream.frontends.model import Model
from slipstream.graph.build import apply_programs, build
from slipstream.graph.cpu.integer_compute import Window, convolution, matmul, pack_columns
from slipstream.graph.cpu.pipeline import NAME
from slipstream.graph.forms import schedule_untuned
from slipstream.graph.prepare import prepare
from slipstream.graph.relax_walk import prim_funcs
from slipstream.machine.dot_product import AVX512_VNNI, AVX_VNNI, SDOT, DotProduct, dot_product_of
from slipstream.machine.target import Target, resolve_target
from slipstream.program.space import Space
from tests.frontends.test_onnx_models import model, node

Array = np.ndarray[Any, Any]
HOST = platform.machine()
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


def difference(proto: onnx.ModelProto, target: Target, integers: int = 1, positive: bool = False) -> float:
    """The largest difference from ONNX Runtime, with `integers` products in integers."""
    loaded: Model = load_model(proto)
    prepared, _ = prepare(loaded.module, target)
    assert sum("integer" in str(gv.name_hint) for gv in prim_funcs(prepared)) == integers
    built = build(apply_programs(prepared, target), target)
    run = TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs, target.threads)
    rng = np.random.default_rng(0)
    (spec,) = loaded.inputs
    values = rng.standard_normal(spec.shape) * 4
    feed = {spec.name: (np.abs(values) * 20 if positive else values).astype(np.float32)}
    ((expected,),) = loaded.reference.outputs([feed])
    (actual,) = run(feed)
    assert np.ptp(expected) > 0
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
