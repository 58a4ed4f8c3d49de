"""Products of AMX tiles: right for many shapes, by an emulator of them and, where the CPU has them, for real."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto as T
from tvm import te

import slipstream
from slipstream.artifact.runtime import TvmExecutor
from slipstream.frontends import load_model
from slipstream.graph.build import apply_programs, build
from slipstream.graph.cpu.integer_compute import (
    Window,
    convolution,
    matmul,
    pack_columns,
    requantised,
    rounded_limits,
    rows_of_pixels,
    scaled,
)
from slipstream.graph.cpu.pipeline import NAME
from slipstream.graph.cpu.tile_registers import MOST_SUMS
from slipstream.graph.cpu.tile_schedule import tile_sketch
from slipstream.graph.forms import schedule_untuned
from slipstream.graph.operators import extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine import target as target_module
from slipstream.machine.dot_product import AVX512_VNNI, dot_product_of, tile_operation_of
from slipstream.machine.target import Target, lacking_features, resolve_target
from slipstream.program.space import Space
from tests.frontends.test_onnx_models import model, node
from tests.graph.cpu.tile_emulator import Counts, emulated_tiles

Array = np.ndarray[Any, Any]
HERE = resolve_target(threads=2)
TILES = ("amx-tile", "amx-int8", "amx-bf16")
SAPPHIRE_RAPIDS = Target(
    "x86_64", "sapphirerapids", ("avx2", "avx512f", "avx512vnni", "avx512bf16", "avx512fp16", "fma", *TILES), (), 2
)


@dataclass(frozen=True)
class Tiles:
    """A target with tiles, for real or with an emulator behind them."""

    target: Target
    counts: Counts | None


@pytest.fixture(params=["emulated", "real"])
def tiles(request: pytest.FixtureRequest) -> Iterator[Tiles]:
    if request.param == "real" and lacking_features(TILES):
        pytest.skip("this CPU has no AMX, or the kernel does not let this process use it")
    with emulated_tiles() if request.param == "emulated" else nullcontext() as counts:
        yield Tiles(replace(HERE, features=tuple({*HERE.features, *TILES})), counts)


def levels(*shape: int, low: int = -127, high: int = 128, dtype: Any = np.int8) -> Array:
    return np.random.default_rng(list(shape)).integers(low, high, shape).astype(dtype)


def integer_convolution(
    height: int, width: int, channels: int, filters: int, kernel: int, stride: int = 1
) -> tuple[Any, list[Array], Array]:
    """A convolution of bytes with a border of 7s, its arguments, and what comes of it."""
    dot, border = AVX512_VNNI, kernel // 2
    weights = levels(filters, kernel, kernel, channels)
    packed = pack_columns(weights if channels % 4 == 0 else rows_of_pixels(weights, dot), dot)
    image = levels(1, height, width, channels, low=0, high=256, dtype=np.uint8)
    given = [image, packed, np.array([7], np.uint8), levels(filters).astype(np.int32), np.ones(filters, np.float32)]
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"a{n}") for n, a in enumerate(given)]
    window = Window((kernel, kernel), (stride, stride), (border,) * 4, (1, 1))
    sums = convolution(*tensors[:3], window, dot)
    func = te.create_prim_func([*tensors, scaled(sums, *tensors[3:], filters)])
    wide = np.pad(image, ((0, 0), (border, border), (border, border), (0, 0)), constant_values=7).astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]
    expected = np.einsum("nhwcyx,fyxc->nhwf", windows, weights.astype(np.int64)) + given[3]
    return func, given, expected


def run(func: Any, given: list[Array], like: Array, dtype: str) -> Array:
    library = tvm.compile(tvm.IRModule({"main": func}), target=HERE.tvm, tir_pipeline=NAME).jit()
    result = tvm.runtime.empty(like.shape, dtype)
    library["main"](*map(tvm.runtime.tensor, given), result)
    return np.asarray(result.numpy())


@pytest.mark.parametrize(
    "sizes",
    [
        (8, 8, 64, 32, 1),
        pytest.param((4, 28, 128, 64, 1), marks=pytest.mark.slow),
        (14, 14, 48, 40, 3),  # columns that fill no tile
        (7, 7, 64, 48, 3),
        (6, 28, 64, 32, 3, 2),
        pytest.param((4, 20, 96, 24, 1, 2), marks=pytest.mark.slow),
        (12, 32, 3, 32, 3, 2),  # rows within rows of pixels
        pytest.param((5, 12, 20, 16, 1), marks=pytest.mark.slow),
    ],
)
def test_convolutions_of_bytes_are_exact(tiles: Tiles, sizes: tuple[int, ...]) -> None:
    func, given, expected = integer_convolution(*sizes)
    sketch = tile_sketch(func, tiles.target)
    assert sketch is not None
    np.testing.assert_array_equal(run(sketch.mod["main"], given, expected, "float32"), expected)
    if tiles.counts is not None:
        assert tiles.counts.faults == 0


@pytest.mark.parametrize(("rows", "length", "columns"), [(128, 192, 96), (12, 36, 20), (24, 70, 16)])
def test_matmuls_of_bytes_are_exact(tiles: Tiles, rows: int, length: int, columns: int) -> None:
    func, given, expected = integer_matmul(rows, length, columns)
    scheduled = schedule_untuned(func, tiles.target).with_attr("global_symbol", "main")
    assert "tdpbusd" in str(scheduled)
    np.testing.assert_array_equal(run(scheduled, given, expected, "uint8"), expected)


def integer_matmul(rows: int, length: int, columns: int) -> tuple[Any, list[Array], Array]:
    """A matmul of bytes that is rounded to bytes."""
    weights = levels(columns, length)
    scale = np.full(columns, 2.0**-10, np.float32)
    data = levels(rows, length, low=0, high=256, dtype=np.uint8)
    limits, zero = rounded_limits(-100, 155), np.array([100], np.uint8)
    given = [data, pack_columns(weights, AVX512_VNNI), levels(columns).astype(np.int32), scale, limits, zero]
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"a{n}") for n, a in enumerate(given)]
    sums = matmul(*tensors[:2], AVX512_VNNI)
    func = te.create_prim_func([*tensors, requantised(sums, *tensors[2:], columns)])
    exact = data.astype(np.int64) @ weights.T.astype(np.int64) + given[2]
    return func, given, np.clip(np.rint(exact * 2.0**-10) + 100, 0, 255)


def test_all_programs_of_the_sketch_are_right(tiles: Tiles) -> None:
    """Whatever tiles are drawn, their sums fit the registers; data and weights are loaded again where they do not."""
    func, given, expected = integer_convolution(4, 16, 256, 96, 1)
    space = Space("conv", func, tiles.target)
    assert space.default.sketch != space.own[1].sketch  # in vectors
    rng = np.random.default_rng(0)
    for program in (space.default, *(space.draw(rng, [space.default]) for _ in range(6))):
        realized = space.realize(program)
        assert realized is not None
        np.testing.assert_array_equal(run(realized.module["main"], given, expected, "float32"), expected)
    if tiles.counts is not None:
        assert tiles.counts.faults == 0


def test_neighbouring_tiles_share_what_is_loaded() -> None:
    func, given, expected = integer_convolution(4, 16, 64, 64, 1)
    with emulated_tiles() as counts:
        before = counts.products, counts.loads
        sketch = tile_sketch(func, replace(HERE, features=TILES))
        assert sketch is not None
        run(sketch.mod["main"], given, expected, "float32")
        products, loads = (now - then for now, then in zip((counts.products, counts.loads), before, strict=True))
    assert (products, loads) == (16, 16)  # 2 x 2 tiles at once: 4 loads for 4 products


def weights(*shape: int) -> Array:
    rng = np.random.default_rng(list(shape))
    return (rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))).astype(np.float32)


def convolution_model(channels: int, filters: int, width: int, kernel: int, **attributes: Any) -> onnx.ModelProto:
    own = channels // attributes.get("group", 1)
    parameters = {"w": weights(filters, own, kernel, kernel), "b": weights(filters)}
    nodes = [node("Conv", "x w b", "c", kernel_shape=[kernel, kernel], **attributes), node("Relu", "c", "y")]
    return model(nodes, {"x": (T.FLOAT, [1, channels, 9, width])}, "y", 13, parameters)


def attention_model(length: int) -> onnx.ModelProto:
    """softmax(x x') x, where both products are of tensors that are computed, and a projection."""
    parameters = {"w": weights(48, 32)}
    nodes = [
        node("MatMul", "x w", "p"),
        node("Transpose", "p", "t", perm=[0, 2, 1]),
        node("MatMul", "p t", "s"),
        node("Softmax", "s", "a"),
        node("MatMul", "a p", "y"),
    ]
    return model(nodes, {"x": (T.FLOAT, [2, length, 48])}, "y", 13, parameters)


MODELS = {
    "3x3": lambda: convolution_model(64, 32, 16, 3, pads=[1, 1, 1, 1]),
    "strided": lambda: convolution_model(16, 24, 17, 3, strides=[2, 2], pads=[1, 1, 1, 1]),
    "three channels": lambda: convolution_model(3, 16, 16, 3, pads=[1, 1, 1, 1]),
    "depthwise": lambda: convolution_model(32, 32, 16, 3, group=32, pads=[1, 1, 1, 1]),
    "odd": lambda: convolution_model(15, 21, 13, 1),
    "attention": lambda: attention_model(16),
    "pooled": lambda: _pooled(convolution_model(8, 16, 16, 1)),
}


def _pooled(proto: onnx.ModelProto) -> onnx.ModelProto:
    proto.graph.node[-1].output[0] = "r"
    proto.graph.node.append(node("MaxPool", "r", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    return proto


def relative_error(proto: onnx.ModelProto, target: Target) -> float:
    loaded = load_model(proto)
    built = build(apply_programs(prepare(loaded.module, target)[0], target), target)
    call = TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs, target.threads)
    (spec,) = loaded.inputs
    feed = {spec.name: np.random.default_rng(0).standard_normal(spec.shape).astype(np.float32)}
    ((expected,),) = loaded.reference.outputs([feed])
    (actual,) = call(feed)
    return float(np.sqrt(np.square(np.asarray(actual) - expected).mean() / np.square(expected).mean()))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("strided", "odd", "pooled"))) for name in MODELS]
)
def test_bfloat16_rounds_to_eight_digits(tiles: Tiles, name: str) -> None:
    """Every factor and every result is wrong by 2**-9 at most, sums are in float32."""
    products = tiles.counts.products if tiles.counts is not None else 0
    error = relative_error(MODELS[name](), replace(tiles.target, dtype="bfloat16"))
    assert 1e-4 < error < 6e-3
    if tiles.counts is not None:
        assert tiles.counts.faults == 0
        assert (tiles.counts.products > products) == (name != "depthwise")


@pytest.mark.parametrize("name", ["3x3", "pooled", pytest.param("attention", marks=pytest.mark.slow)])
def test_bfloat16_without_an_instruction_is_right_too(name: str) -> None:
    plain = {"x86_64": "cpu:x86-64", "aarch64": "cpu:generic"}[HERE.architecture]
    assert 1e-4 < relative_error(MODELS[name](), replace(resolve_target(plain, threads=2), dtype="bfloat16")) < 6e-3


@pytest.mark.skipif(not HERE.has_arithmetic_in("bfloat16"), reason="this CPU has no arithmetic in bfloat16")
@pytest.mark.parametrize("name", list(MODELS))
def test_bfloat16_in_vectors(name: str) -> None:
    vectors = replace(HERE, features=tuple({*HERE.features} - {*TILES}), dtype="bfloat16")
    assert 1e-4 < relative_error(MODELS[name](), vectors) < 6e-3


def assembly(func: Any, target: Target) -> str:
    scheduled = schedule_untuned(func, target).with_attr("global_symbol", "f")
    library = tvm.compile(tvm.IRModule({"f": scheduled}), target=target.tvm, tir_pipeline=NAME)
    return str(library.mod.inspect_source("asm"))


def test_bytes_become_tile_instructions_and_nothing_is_spilled() -> None:
    assert dot_product_of(SAPPHIRE_RAPIDS) is AVX512_VNNI
    func, *_ = integer_matmul(128, 768, 768)
    code = assembly(func, SAPPHIRE_RAPIDS)
    found = re.findall(r"\t(tdpbusd|tilezero|tilestored|ldtilecfg|tilerelease|sttilecfg)\b", code)
    # Four tiles of sums, each cleared and stored once; a spilled one would be stored again.
    assert {name: found.count(name) for name in set(found) - {"tdpbusd"}} == {
        "tilezero": 4,
        "tilestored": 4,
        "ldtilecfg": 1,
        "tilerelease": 1,
    }
    used = {tuple(map(int, tile)) for tile in re.findall(r"tdpbusd\t%tmm(\d), %tmm(\d), %tmm(\d)", code)}
    assert used == {(6, 4, 0), (7, 4, 1), (6, 5, 2), (7, 5, 3)}  # weights, data, sums
    assert not re.findall(r"tdpbssd|vpdpbusd", code)


@pytest.mark.parametrize("tiled", [True, False])
def test_pairs_of_bfloat16_become_instructions(tiled: bool) -> None:
    features = SAPPHIRE_RAPIDS.features if tiled else tuple({*SAPPHIRE_RAPIDS.features} - {*TILES})
    target = replace(SAPPHIRE_RAPIDS, features=features, dtype="bfloat16")
    prepared, _ = prepare(load_model(MODELS["3x3"]()).module, replace(HERE, dtype="bfloat16"))
    (func,) = [operator.func for operator in extract_operators(prepared) if "conv2d" in operator.name]
    code = assembly(func, target)
    assert ("\ttdpbf16ps\t" in code) == tiled
    assert bool(re.search(r"\tvdpbf16ps\t.*%zmm", code)) == (not tiled)


def test_which_instruction_a_target_has() -> None:
    assert tile_operation_of(HERE, "float32") is None
    found = tile_operation_of(SAPPHIRE_RAPIDS, "uint8")
    assert found is not None
    assert (found.name, found.most_depth) == ("tdpbusd", 64)
    assert MOST_SUMS == 6


@pytest.mark.slow
def test_a_compiled_model_configures_tiles_in_its_own_threads(
    tiles: Tiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through the library and the thread pool of an artifact, and verified."""
    if tiles.counts is not None:
        features = (*TILES, "avx512bf16")
        target = replace(HERE, features=tuple({*HERE.features, *features}))
        monkeypatch.setattr(target_module, "_cpu_target", lambda name, threads: replace(target, threads=threads))
        known = target_module.host_features() | {feature.replace("-", "") for feature in features}
        monkeypatch.setattr(target_module, "host_features", lambda: known)
    onnx.save(MODELS["3x3"](), str(tmp_path / "model.onnx"))
    slipstream.compile(str(tmp_path / "model.onnx"), tmp_path / "compiled", dtype="bfloat16", threads=2)
    loaded = slipstream.load(tmp_path / "compiled")
    assert loaded.manifest.dtype == "bfloat16"
    (check,) = loaded.manifest.verification.outputs
    assert 0 < check.max_relative < check.tolerance
    if tiles.counts is not None:
        before = tiles.counts.products
        loaded({"x": np.ones((1, 64, 9, 16), np.float32)})
        assert tiles.counts.products > before
        assert tiles.counts.faults == 0
