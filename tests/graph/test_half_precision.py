"""float16 on a CPU: partial sums in halves, their totals in float32, element-wise code, and the instructions."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from click.testing import CliRunner
from onnx import TensorProto as T

import slipstream
from slipstream.artifact.runtime import TvmExecutor
from slipstream.cli import main
from slipstream.errors import TargetError
from slipstream.frontends import load_model
from slipstream.graph.build import apply_programs, build
from slipstream.graph.cpu.half_sums import MOST_TERMS, terms_at_once
from slipstream.graph.cpu.pipeline import NAME
from slipstream.graph.forms import forms_of, schedule_untuned, untuned_start
from slipstream.graph.operators import extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine import target as target_module
from slipstream.machine.target import Target, resolve_target
from tests.frontends.test_onnx_models import model, node

Array = np.ndarray[Any, Any]
TARGETS = {
    "aarch64": Target("aarch64", "neoverse-n1", ("dotprod", "fullfp16"), (), 2, dtype="float16"),
    "x86_64": Target(
        "x86_64", "sapphirerapids", ("avx2", "avx512f", "avx512fp16", "avx512vnni", "fma"), (), 2, dtype="float16"
    ),
}
HERE = replace(resolve_target(threads=2), dtype="float16")
needs_halves = pytest.mark.skipif(not HERE.has_arithmetic_in("float16"), reason="this CPU has no arithmetic in float16")


def weights(*shape: int) -> Array:
    rng = np.random.default_rng(list(shape))
    return (rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))).astype(np.float32)


def network() -> onnx.ModelProto:
    """A convolution of many channels, a depthwise one, a shortcut, a pooling, a softmax and a classifier."""
    parameters = {
        "w1": weights(32, 3, 3, 3),
        "w2": weights(32, 32, 3, 3),
        "b2": weights(32),
        "wd": weights(32, 1, 3, 3),
        "w3": weights(64, 32, 1, 1),
        "wc": weights(256, 16).astype(np.float32) * 4,
    }
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w1", "a", **same),
        node("Relu", "a", "ar"),
        node("Conv", "ar w2 b2", "b", **same),
        node("Add", "b ar", "s"),
        node("Relu", "s", "sr"),
        node("Conv", "sr wd", "d", group=32, **same),
        node("Clip", "d low high", "dc"),
        node("Conv", "dc w3", "e", kernel_shape=[1, 1]),
        node("MaxPool", "e", "p", kernel_shape=[4, 4], strides=[4, 4]),
        node("Flatten", "p", "f"),
        node("MatMul", "f wc", "c"),
        node("Softmax", "c", "y"),
    ]
    limits = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    return model(nodes, {"x": (T.FLOAT, [1, 3, 8, 8])}, "y", 13, parameters | limits)


def matmul(length: int, rows: int = 24, columns: int = 40) -> onnx.ModelProto:
    parameters = {"w": weights(columns, length).T.copy()}
    return model([node("MatMul", "x w", "y")], {"x": (T.FLOAT, [rows, length])}, "y", 13, parameters)


@pytest.mark.parametrize(
    ("extents", "inner"),
    [
        ((64,), (64,)),
        ((768,), (64,)),
        ((3, 3, 64), (1, 1, 64)),
        ((3, 3, 512), (1, 1, 64)),
        ((7, 7, 3), (1, 7, 3)),
        ((3, 3), (3, 3)),
        ((197,), (197,)),
        ((1, 1, 200), (1, 1, 50)),
        ((1021,), (1,)),  # a prime number above what is summed up at once: in float32
    ],
)
def test_how_many_terms_are_added_up_in_float16(extents: tuple[int, ...], inner: tuple[int, ...]) -> None:
    found = terms_at_once(extents)
    assert tuple(found) == inner
    assert all(extent % own == 0 for extent, own in zip(extents, found, strict=True))


def _relative_error(proto: onnx.ModelProto, target: Target, **options: Any) -> float:
    loaded = load_model(proto)
    built = build(apply_programs(prepare(loaded.module, target)[0], target), target)
    run = TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs, target.threads)
    (spec,) = loaded.inputs
    feed = {spec.name: np.random.default_rng(0).standard_normal(spec.shape).astype(np.float32)}
    ((expected,),) = loaded.reference.outputs([feed])
    (actual,) = run(feed)
    return float(np.sqrt(np.square(np.asarray(actual) - expected).mean() / np.square(expected).mean()))


@needs_halves
@pytest.mark.parametrize("length", [64, 2048, 1021, 197])
def test_long_sums_are_as_exact_as_short_ones(length: int) -> None:
    """Sums of 2,048 products in float16 alone are wrong by 0.9 %, of the 64 that are added up at once by 0.16 %."""
    error = _relative_error(matmul(length), HERE)
    assert 1e-5 < error < 2.0**-11 * math.sqrt(min(length, 4 * MOST_TERMS)) / 2.4 + 5e-4


@needs_halves
@pytest.mark.parametrize("channels", [64, 256])
def test_winograds_small_tiles_lose_few_digits_and_large_ones_are_not_used(channels: int) -> None:
    parameters = {"w": weights(64, channels, 3, 3)}
    nodes = [node("Conv", "x w", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Relu", "c", "y")]
    proto = model(nodes, {"x": (T.FLOAT, [1, channels, 18, 18])}, "y", 13, parameters)
    (operator, *_) = extract_operators(prepare(load_model(proto).module, HERE)[0])
    start = untuned_start(operator.func, HERE)
    assert start is not None
    assert (start.form, forms_of(operator.func, HERE)) == ("winograd2", {"", "winograd2"})
    assert 1e-5 < _relative_error(proto, HERE) < 4e-3


@needs_halves
def test_a_compiled_network_states_its_error_and_stores_halves(tmp_path: Path) -> None:
    onnx.save(network(), str(tmp_path / "model.onnx"))
    slipstream.compile(str(tmp_path / "model.onnx"), tmp_path / "half", dtype="float16", threads=2)
    loaded = slipstream.load(tmp_path / "half")
    assert loaded.manifest.dtype == "float16"
    (check,) = loaded.manifest.verification.outputs
    assert 0 < check.max_relative < check.tolerance == 1e-2
    assert {spec.dtype for spec in loaded.manifest.weights if math.prod(spec.shape) > 256} == {"float16"}


def test_operators_have_the_names_they_have_in_float32() -> None:
    module = load_model(network()).module
    named = [
        {operator.name.partition(" + ")[0] for operator in extract_operators(prepare(module, target)[0])}
        for target in (replace(HERE, dtype="float32"), HERE)
    ]
    convolutions = [{name for name in names if "conv2d" in name or "pool" in name} for names in named]
    assert convolutions[0] == convolutions[1]
    assert any("3x3 32→32" in name for name in convolutions[0])


@pytest.mark.parametrize("architecture", list(TARGETS))
def test_products_are_of_vectors_of_halves(architecture: str) -> None:
    """Code of both architectures, whichever this is."""
    target = TARGETS[architecture]
    operators = extract_operators(prepare(load_model(network()).module, HERE)[0])
    code = {operator.name: _assembly(operator.func, target) for operator in operators}
    fused = {"aarch64": r"fmla\tv\d+\.8h", "x86_64": r"vfmadd\d+ph\t.*zmm"}[architecture]
    single = {"aarch64": r"fmla\tv\d+\.4s", "x86_64": r"vfmadd\d+ps\t"}[architecture]
    for kind in ("conv2d 3x3 32→32", "depthwise conv2d", "conv2d 1x1"):
        (text,) = [text for name, text in code.items() if name.startswith(kind)]
        assert re.search(fused, text), kind
        assert not re.search(single, text), kind


def _assembly(func: Any, target: Target) -> str:
    scheduled = schedule_untuned(func, target).with_attr("global_symbol", "f")
    library = tvm.compile(tvm.IRModule({"f": scheduled}), target=target.tvm, tir_pipeline=NAME)
    return str(library.mod.inspect_source("asm"))


def test_a_cpu_without_the_instructions_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = Target("aarch64", "cortex-a72", (), (), 2)
    monkeypatch.setattr(target_module, "_cpu_target", lambda name, threads: plain)
    with pytest.raises(TargetError, match="has no float16 arithmetic, which needs fullfp16: leave --dtype out"):
        resolve_target("cpu", dtype="float16")
    result = CliRunner().invoke(main, ["compile", "zoo:tiny_cnn", "-o", str(tmp_path / "x"), "--dtype", "float16"])
    assert result.exit_code != 0
    assert "has no float16 arithmetic" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_tf32_is_for_gpus() -> None:
    with pytest.raises(TargetError, match="is for GPUs: on a CPU leave --dtype out"):
        resolve_target("cpu", dtype="tf32")


@pytest.mark.parametrize(("architecture", "needed"), [("x86_64", "avx512bf16"), ("aarch64", "not used here")])
def test_bfloat16_without_its_instructions_is_refused(
    monkeypatch: pytest.MonkeyPatch, architecture: str, needed: str
) -> None:
    plain = Target(architecture, "some-cpu", ("avx2", "bf16"), (), 2)
    monkeypatch.setattr(target_module, "_cpu_target", lambda name, threads: plain)
    with pytest.raises(TargetError, match=f"has no bfloat16 arithmetic, which needs .*{needed}: leave --dtype out"):
        resolve_target("cpu", dtype="bfloat16")
