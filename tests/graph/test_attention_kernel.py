"""The Triton kernel of an attention: read from a model's own function, and run in Triton's interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

import slipstream
from slipstream.frontends.zoo._attention import attend
from slipstream.frontends.zoo._graph import Graph
from slipstream.graph.gpu.fuse import ATTENTION
from slipstream.graph.gpu.triton.attention import find_attention
from slipstream.graph.gpu.triton.attention_source import AttentionExtents, AttentionTiles, attention_source
from slipstream.graph.operators import extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target

pytestmark = pytest.mark.skipif(
    not resolve_target("cuda:sm_90", dtype="float16").has_triton, reason="Triton is not installed"
)


def attention_of(tokens: int, width: int, heads: int, dtype: str = "float16"):
    """The function of a small model's attention, with a mask of which some scores are minus infinity."""
    graph = Graph("attention", 0)
    x = graph.input("x", (1, tokens, width), features=width)
    mask = graph.node("Log", graph.input("mask", (1, 1, tokens, tokens)))
    query, key, value = (graph.project(x, width) for _ in range(3))
    graph.output(attend(graph, query, key, value, heads, mask=mask), "y", (1, tokens, width))
    model = slipstream.load_model(graph.model)
    operators = extract_operators(prepare(model.module, resolve_target("cuda:sm_90", dtype=dtype))[0])
    (func,) = [operator.func for operator in operators if operator.func.attrs.get(ATTENTION)]
    return func


def test_a_model_without_attention_has_none() -> None:
    operators = extract_operators(
        prepare(slipstream.load_model("zoo:tiny_cnn").module, resolve_target("cuda:sm_90", dtype="float16"))[0]
    )
    assert all(find_attention(operator.func) is None for operator in operators)


def test_everything_around_it_is_in_its_expressions() -> None:
    attention = find_attention(attention_of(19, 36, 2))
    assert attention is not None
    assert attention.sizes == (19, 19, 18, 18)
    assert attention.batches == 2
    # Slices and transposes of the joint projection are indices without divisions.
    for factor in (attention.query, attention.key, attention.value):
        assert "//" not in str(factor)
        assert "%" not in str(factor)


def test_decisions_that_cannot_run_are_refused() -> None:
    attention = find_attention(attention_of(19, 36, 2))
    assert attention is not None
    extents = AttentionExtents.of(attention)
    assert extents.refusal(AttentionTiles(64, 16, 1, 4), 10**6)
    assert extents.refusal(AttentionTiles(16, 16, 4, 1), 10**6)
    assert extents.refusal(AttentionTiles(32, 32, 1, 4), 4096)
    start = extents.start(227 * 1024, 132)
    assert start is not None
    assert not extents.refusal(start, 227 * 1024)


@pytest.mark.parametrize(
    ("tokens", "width", "heads", "dtype"),
    [(19, 36, 2, "float16"), pytest.param(32, 32, 2, "tf32", marks=pytest.mark.slow)],
)
def test_the_kernel_computes_what_the_function_does(
    tokens: int, width: int, heads: int, dtype: str, tmp_path: Path
) -> None:
    func = attention_of(tokens, width, heads, dtype)
    attention = find_attention(func)
    assert attention is not None
    tiles = AttentionTiles(16, 16, 1, 1)
    source = tmp_path / "kernel.py"
    source.write_text(attention_source(attention, tiles))
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([int(e) for e in parameter.ty.shape]).astype(str(parameter.ty.dtype))
        for parameter in func.params
    ]
    mask = next(array for array in arrays if array.shape[-2:] == (tokens, tokens))
    mask[...] = np.abs(mask) * (rng.random(mask.shape) < 0.7)
    mask[..., :1] = 1.0  # no row is all zeros, whose logarithm is minus infinity
    np.savez(tmp_path / "in.npz", **{f"{place:02}": array for place, array in enumerate(arrays)})
    grid = map(str, AttentionExtents.of(attention).grid(tiles))
    interpreter = Path(__file__).with_name("interpreted_kernel.py")
    command = [sys.executable, str(interpreter), str(source), str(tmp_path / "in.npz"), str(tmp_path / "out.npy")]
    subprocess.run([*command, *grid], check=True)
    library = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target="llvm").jit()
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    library["main"](*tensors)
    expected = tensors[-1].numpy().astype(np.float32)
    found = np.load(tmp_path / "out.npy").astype(np.float32)
    assert np.isfinite(expected).all()
    assert np.abs(found - expected).max() < 4e-3 * np.abs(expected).max()
