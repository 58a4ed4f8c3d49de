"""Kernels on a GPU in half precision: how many there are, what they exchange, and that they compute the model."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

import slipstream
from slipstream.artifact.runtime import TvmExecutor
from slipstream.artifact.verify import verification_inputs, verify
from slipstream.errors import TargetError
from slipstream.frontends.zoo._attention import attend
from slipstream.frontends.zoo._graph import Graph
from slipstream.graph.build import build
from slipstream.graph.gpu.fuse import ATTENTION, fuse_kernels
from slipstream.graph.operators import Operator, extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target

_TOKENS, _WIDTH, _HEADS = 16, 32, 2


def encoder(*, projections: int) -> onnx.ModelProto:
    """One layer on `x`, with one projection that is split in three, or three; then the first token, projected."""
    graph = Graph("encoder", 0)
    x = graph.input("x", (1, _TOKENS, _WIDTH), features=_WIDTH)
    mask = graph.node("Mul", graph.input("mask", (1, 1, 1, _TOKENS)), graph.scalar(-3.0))
    joint = graph.split(graph.project(x, 3 * _WIDTH), 3) if projections == 1 else []
    query, key, value = joint or [graph.project(x, _WIDTH) for _ in range(3)]
    mixed = graph.project(attend(graph, query, key, value, _HEADS, mask=mask), _WIDTH)
    x = graph.layer_norm(graph.add(x, mixed), epsilon=1e-5)
    hidden = graph.activate(graph.project(x, 2 * _WIDTH), "silu")
    x = graph.layer_norm(graph.add(x, graph.project(hidden, _WIDTH)), epsilon=1e-5)
    first = graph.node("Gather", x, graph.constant(np.array(0, np.int64)), axis=1)
    graph.output(graph.linear(first, 8), "y", (1, 8))
    return graph.model


def detector() -> onnx.ModelProto:
    """Convolutions with SiLU, a split, an upsampled image and concatenations, as in YOLO."""
    graph = Graph("detector", 0)
    image = graph.input("input", (1, 3, 16, 16), features=3)
    fine = graph.conv_bn(image, 16, 3, stride=2, act="silu")
    coarse = graph.conv_bn(fine, 16, 3, stride=2, act="silu")
    deeper = graph.conv_bn(coarse, 16, 3, act="silu")
    joined = graph.conv_bn(graph.concat(coarse, graph.add(coarse, deeper)), 16, 1, act="silu")
    large = graph.node("Resize", joined, "", graph.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    out = graph.conv_bn(graph.concat(fine, large), 24, 1, act="silu")
    pooled = graph.max_pool(out, 3, 2, padding=1)
    graph.output(graph.flatten(graph.conv(pooled, 4, 1), features=64), "y", (1, 64))
    return graph.model


MODELS = {
    "one projection": lambda: encoder(projections=1),
    "three projections": lambda: encoder(projections=3),
    "detector": detector,
}


@cache
def _prepared(model: str, dtype: str):
    loaded = slipstream.load_model(MODELS[model]())
    return loaded, prepare(loaded.module, resolve_target("cuda:sm_90", dtype=dtype))[0]


def _kernels(model: str, dtype: str = "float16") -> list[Operator]:
    return extract_operators(_prepared(model, dtype)[1])


def _copies(operators: list[Operator]) -> list[str]:
    moves = {"cast", "reshape", "transpose", "slice", "split", "pad", "copy", "where"}
    return [operator.name for operator in operators if set(operator.kinds) <= moves]


@pytest.mark.parametrize("model", MODELS)
def test_no_kernel_only_moves_or_converts_but_an_image(model: str) -> None:
    # An image is brought into the layout of convolutions once, not for every window.
    assert len(_copies(_kernels(model))) == (model == "detector")


@pytest.mark.parametrize("model", ["one projection", "three projections"])
def test_an_encoder_has_a_kernel_for_each_matmul_and_norm(model: str) -> None:
    with_attention = resolve_target("cuda:sm_90", dtype="float16").has_triton
    operators = _kernels(model)
    kinds = [kind for operator in operators for kind in operator.kinds for _ in range(operator.weight)]
    assert kinds.count("matmul") == 5  # projections, two layers, the head
    assert kinds.count("layer_norm") == 2
    assert kinds.count("attention") == with_attention
    # Without a kernel for it, an attention is two products and a softmax.
    assert sum(operator.weight for operator in operators) == 7 + (1 if with_attention else 3)
    assert sum(bool(operator.func.attrs.get(ATTENTION)) for operator in operators) == with_attention


def test_a_detector_has_a_kernel_for_each_convolution_concatenation_and_pool() -> None:
    operators = _kernels("detector")
    convolutions = [operator for operator in operators if "conv2d" in operator.kinds]
    assert sum(operator.weight for operator in convolutions) == 6
    assert sum(operator.weight for operator in operators) == 1 + 6 + 2 + 1
    assert all("silu" in operator.kinds for operator in convolutions if "8x8" in operator.name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_exchange_halves_and_the_model_keeps_its_types(dtype: str) -> None:
    _, module = _prepared("three projections", dtype)
    main = module["main"]
    assert {str(parameter.ty.dtype) for parameter in main.params} == {"float32"}
    assert str(main.ret_ty.dtype) == "float32"
    for block in main.body.blocks:
        for binding in block.bindings[:-1]:
            if not binding.var.same_as(main.body.body):
                assert str(binding.var.ty.dtype) == dtype


@pytest.mark.parametrize(
    ("model", "dtype", "rounding"),
    [
        ("three projections", "float16", 2.0**-10),
        ("detector", "float16", 2.0**-10),
        pytest.param("one projection", "float16", 2.0**-10, marks=pytest.mark.slow),
        pytest.param("one projection", "bfloat16", 2.0**-7, marks=pytest.mark.slow),
        pytest.param("detector", "bfloat16", 2.0**-7, marks=pytest.mark.slow),
        pytest.param("three projections", "tf32", 0.0, marks=pytest.mark.slow),
    ],
)
def test_prepared_models_compute_the_same(model: str, dtype: str, rounding: float) -> None:
    """Unscheduled, on the CPU: as exact as the type is, and for halves no more."""
    loaded, module = _prepared(model, dtype)
    built = build(module, resolve_target("cpu"))
    run = TvmExecutor(built.executable, built.weights, loaded.inputs, loaded.outputs)
    (check,) = verify(loaded, run, verification_inputs(loaded, None), dtype).outputs
    assert rounding / 50 < check.max_relative < max(3 * rounding, 1e-5)


def test_without_attention_products_and_softmax_are_kernels_of_their_own() -> None:
    from slipstream.graph.prepare import PASSES

    target = resolve_target("cuda:sm_90", dtype="float16")
    module = slipstream.load_model(MODELS["one projection"]()).module
    with target.tvm:
        for step in PASSES:
            if step.name == "fuse":
                break
            module = step.apply(module, target)
        apart = extract_operators(fuse_kernels(module, with_attention=False))
        joint = extract_operators(fuse_kernels(module, with_attention=True))
    assert len(apart) == len(joint) + 2
    assert not any(operator.func.attrs.get(ATTENTION) for operator in apart)


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32"])
def test_older_gpus_refuse_newer_types(dtype: str) -> None:
    with pytest.raises(TargetError, match=f"sm_75.*{dtype}.*sm_80"):
        resolve_target("cuda:sm_75", dtype=dtype)
    assert resolve_target("cuda:sm_80", dtype=dtype).dtype == dtype


def test_an_attention_exported_by_pytorch_is_one_kernel(tmp_path: Path) -> None:
    """Its softmax is guarded: a row whose scores are all minus infinity gives zeros."""
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q, k, v, mask):
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return mixed.transpose(1, 2).reshape(2, 6, 16)

    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((2, 2, 6, 8)).astype(np.float32) for _ in range(3)]
    mask = np.where(rng.random((1, 1, 6, 6)) < 0.5, -np.inf, 0.0).astype(np.float32)
    mask[..., 0, :], mask[..., 1, :] = -np.inf, 0.0
    tensors = [torch.from_numpy(array) for array in (*feeds, mask)]
    torch.export.save(torch.export.export(Attention(), tuple(tensors)), tmp_path / "model.pt2")
    model = slipstream.load_model(tmp_path / "model.pt2")
    target = resolve_target("cuda:sm_90", dtype="float16")
    module = prepare(model.module, target)[0]
    assert sum(operator.weight for operator in extract_operators(module)) == (1 if target.has_triton else 3)
    built = build(module, resolve_target("cpu"))
    (found,) = TvmExecutor(built.executable, built.weights, model.inputs, model.outputs)(*feeds, mask)
    expected = Attention()(*tensors).numpy()
    assert not expected[:, 0].any()
    np.testing.assert_allclose(found, expected, atol=4e-3 * np.abs(expected).max())
