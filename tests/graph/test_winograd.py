"""Winograd's form of a convolution: the same results as the direct one, whatever the sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import slipstream
from slipstream.diffusion.signature import signature
from slipstream.graph.forms import function_in, schedule_untuned, untuned_start, winograd_starts
from slipstream.graph.operators import extract_operators
from slipstream.graph.prepare import prepare
from slipstream.graph.winograd.form import find_convolution
from slipstream.graph.winograd.schedule import _register_tile, _Sizes
from slipstream.graph.winograd.transforms import TRANSFORMS, transform_square
from slipstream.machine.target import Target, resolve_target
from slipstream.measure.arena import aligned
from slipstream.measure.lowering import arguments_of, as_tensor, generate, lower
from slipstream.program.space import Space

TARGET = resolve_target()


@dataclass(frozen=True)
class Convolution:
    """What to build: a convolution, as small as the test allows, and what follows it."""

    height: int
    width: int
    channels: int
    filters: int
    epilogue: str = "add relu"
    padding: int = 1
    batch: int = 1
    kernel: int = 3
    strides: int = 1
    dilation: int = 1
    groups: int = 1
    dtype: str = "float32"
    constant: bool = True


@cache
def function(convolution: Convolution) -> Any:
    """Its function in a prepared model."""
    c, rng, builder = convolution, np.random.default_rng(0), relax.BlockBuilder()

    def constant(*shape: int) -> Any:
        return relax.const(rng.standard_normal(shape).astype(c.dtype))

    kernel_shape = (c.filters, c.channels // c.groups, c.kernel, c.kernel)
    x = relax.Var("x", relax.TensorType((c.batch, c.channels, c.height, c.width), c.dtype))
    w = relax.Var("w", relax.TensorType(kernel_shape, c.dtype))
    options = {"padding": c.padding, "strides": c.strides, "dilation": c.dilation, "groups": c.groups}
    with builder.function("main", [x] if c.constant else [x, w]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, constant(*kernel_shape) if c.constant else w, **options))
            for step in c.epilogue.split():
                y = builder.emit(_EPILOGUES[step](y, constant, c))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    mod, _ = prepare(builder.get(), TARGET)
    [operator] = [o for o in extract_operators(mod) if o.kinds[0] in ("conv2d", "depthwise_conv2d", "group_conv2d")]
    return operator.func


_EPILOGUES: dict[str, Any] = {
    "add": lambda y, constant, c: relax.op.add(y, constant(1, c.filters, 1, 1)),
    "residual": lambda y, constant, c: relax.op.add(y, constant(*map(int, y.ty.shape))),
    "relu": lambda y, constant, c: relax.op.nn.relu(y),
    "clip": lambda y, constant, c: relax.op.clip(y, 0, 6),
    "silu": lambda y, constant, c: relax.op.nn.silu(y),
}


def inputs(func: Any) -> list[Any]:
    rng = np.random.default_rng(1)
    arrays = [aligned(a.shape, np.dtype(a.dtype)) for a in arguments_of(func)]
    for array in arrays[:-1]:
        array[...] = rng.standard_normal(array.shape)
    return arrays


def run(func: Any, arrays: list[Any], *, prepack: bool) -> Any:
    """The result, with weights packed in NumPy beforehand or by the function itself."""
    lowered = lower(tvm.IRModule({"main": func}), TARGET, prepack=prepack)
    assert bool(lowered.packings) == prepack
    given = list(arrays)
    for packing in lowered.packings:
        given[packing.index] = packing(given[packing.index])
    given[-1] = aligned(arrays[-1].shape, arrays[-1].dtype)
    generate(lowered, TARGET)["main"](*map(as_tensor, given))
    return given[-1]


@pytest.mark.parametrize("tile", [2, 4])
def test_the_transforms_compute_a_convolution(tile: int) -> None:
    rng, transforms = np.random.default_rng(0), TRANSFORMS[tile]
    data, weight = rng.standard_normal((tile + 2, tile + 2)), rng.standard_normal((3, 3))

    def keep(value: Any) -> Any:
        return value

    inner = np.array(transform_square(transforms.input, data.tolist(), keep))
    inner *= np.array(transform_square(transforms.weight, weight.tolist(), keep))
    direct = [[(data[i : i + 3, j : j + 3] * weight).sum() for j in range(tile)] for i in range(tile)]
    np.testing.assert_allclose(transform_square(transforms.output, inner.tolist(), keep), direct, atol=1e-12)


CASES = [
    Convolution(7, 9, 16, 16, "add relu"),
    Convolution(13, 6, 20, 24, "add", padding=0),
    Convolution(5, 4, 3, 8, "", batch=2),
    Convolution(8, 12, 16, 32, "add residual relu"),
    Convolution(11, 10, 32, 48, "add silu", padding=0),
    Convolution(6, 7, 17, 20, "add clip"),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_form_computes_what_the_operator_does(number: int) -> None:
    func = function(CASES[number])
    arrays = inputs(func)
    expected = run(func, arrays, prepack=False)
    starts = winograd_starts(func, TARGET)
    assert [start.form for start in starts] == ["winograd2", "winograd2", "winograd4", "winograd4"]
    # One way to share the work out with each size of tile; the other one with the next case.
    for start in (starts[number % 2], starts[3 - number % 2]):
        result = run(start.schedule.mod["main"], arrays, prepack=True)
        assert np.abs(result - expected).max() <= 2e-5 * np.abs(expected).max(), start.form


@pytest.mark.parametrize(
    "other",
    [
        Convolution(9, 9, 16, 16, strides=2),
        Convolution(9, 9, 16, 16, kernel=5, padding=2),
        Convolution(9, 9, 16, 16, kernel=1, padding=0),
        Convolution(9, 9, 16, 16, dilation=2),
        Convolution(9, 9, 16, 16, groups=16),
        Convolution(9, 9, 16, 16, dtype="float16"),
        Convolution(9, 9, 16, 16, constant=False),
        Convolution(9, 9, 16, 2),
    ],
    ids=["stride", "5x5", "1x1", "dilation", "groups", "float16", "weight is an input", "no vector of filters"],
)
def test_other_convolutions_stay_as_they_are(other: Convolution) -> None:
    func = function(other)
    assert winograd_starts(func, TARGET) == []
    assert function_in("winograd4", func, TARGET) is None
    start = untuned_start(func, TARGET)
    assert start is not None
    assert start.form == ""


# By lanes and cores.
TARGETS = {
    "16": Target("x86_64", "cascadelake", ("avx2", "avx512f", "fma"), (), 2),
    "8": Target("x86_64", "znver3", ("avx2", "fma"), (), 2),
    "8, many cores": Target("x86_64", "znver3", ("avx2", "fma"), (), 16),
    "4": Target("aarch64", "neoverse-n1", ("neon",), (), 2),
}


@pytest.mark.parametrize(
    ("convolution", "forms"),
    [
        (Convolution(28, 28, 64, 64), ("winograd4", "winograd4", "winograd4", "winograd4")),
        (Convolution(14, 14, 64, 64), ("winograd2", "winograd4", "winograd2", "winograd4")),
        (Convolution(13, 13, 64, 64), ("winograd2", "winograd2", "winograd2", "winograd4")),
        (Convolution(7, 7, 64, 64, batch=8), ("", "winograd2", "", "winograd4")),
        (Convolution(6, 6, 64, 64, batch=8), ("", "", "", "")),  # too few pixels for the weights
        (Convolution(28, 28, 16, 16), ("", "", "", "")),  # too little work
        (Convolution(28, 28, 18, 64), ("", "", "", "")),  # vectors that are not full
    ],
)
def test_the_rule_for_untuned_operators(convolution: Convolution, forms: tuple[str, ...]) -> None:
    func = function(convolution)
    for target, form in zip(TARGETS.values(), forms, strict=True):
        start = untuned_start(func, target)
        assert start is not None
        assert start.form == form, target
        assert ("winograd_product" in str(schedule_untuned(func, target))) == bool(form)
        default = Space("key", func, target).default
        assert (default.sketch.form, default.origin) == (form, "default")


def test_decisions_diffuse_between_relatives_of_one_form_only() -> None:
    one, other = (
        Space("key", function(Convolution(size, size, 32, filters)), TARGET) for size, filters in ((14, 32), (28, 64))
    )
    by_form = {(p.sketch.form, signature(p.sketch)) for p in one.own}
    assert len(by_form) == len({sign for _, sign in by_form}) == 5
    assert by_form == {(p.sketch.form, signature(p.sketch)) for p in other.own}


@pytest.mark.slow
def test_resnet18_is_right_with_them(tmp_path: Any) -> None:
    compiled = slipstream.compile("zoo:resnet18", tmp_path / "out")
    assert compiled.verification is not None
    [logits] = compiled.verification.outputs
    assert logits.max_relative < 1e-5 < logits.tolerance
    # 47 MB as they come: they are transformed.
    assert (tmp_path / "out" / "weights.bin").stat().st_size > 55e6


def test_the_convolution_that_is_found() -> None:
    found = find_convolution(function(Convolution(13, 6, 20, 32, padding=0, batch=2)))
    assert found is not None
    assert (found.batch, found.height, found.width, found.channels, found.filters) == (2, 11, 4, 20, 32)
    assert (found.tiles(2), found.tiles(4)) == (2 * 6 * 2, 2 * 3 * 1)
    assert found.multiplications == 2 * 11 * 4 * 20 * 32 * 9


@pytest.mark.parametrize("tiles", [(7, 7), (9, 9), (14, 14), (4, 4), (5, 3), (1, 1)])
@pytest.mark.parametrize("vectors", [4, 12, 64])
@pytest.mark.parametrize("lanes", ["4", "8"])
def test_a_tile_leaves_registers_for_its_factors_where_no_instruction_broadcasts_one(
    tiles: tuple[int, int], vectors: int, lanes: str
) -> None:
    target = TARGETS[lanes]
    rows, columns, wide = _register_tile(_Sizes(4, int(lanes), 64, 6, 1, *tiles, vectors), target)
    assert rows * columns * wide + wide + 1 <= target.vector_registers
    assert rows * columns * wide >= min(4, tiles[0] * tiles[1] * vectors)


def test_few_registers_are_not_spent_on_eight_vectors_of_weights() -> None:
    """7 tiles a side: one value and eight vectors load nine factors for eight products."""
    sizes = _Sizes(4, 8, 256, 4, 1, 7, 7, 32)
    rows, columns, wide = _register_tile(sizes, TARGETS["8"])
    assert (rows * columns, wide) == (7, 1)
    assert _register_tile(sizes, TARGETS["16"])[2] > 1
