"""The default programs: the same results as unscheduled loops, on many cores, in vectors, whatever the shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, s_tir, te, tirx, topi

from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.graph.prepare import prepare
from slipstream.graph.relax_walk import prim_funcs
from slipstream.machine.target import Target, resolve_target

Array = np.ndarray[Any, Any]
Body = Callable[..., Any]

op = relax.op


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target(threads=2)


def lowered(*tensors: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func(list(tensors))


def fused(target: Target, body: Body, *shapes: tuple[int, ...]) -> tirx.PrimFunc:
    """The one function that `body` of float32 tensors becomes."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(body(*parameters))
        builder.emit_func_output(result)
    (func,) = prim_funcs(prepare(builder.get(), target)[0]).values()
    return func


# For unscheduled functions: LLVM takes seconds to unroll and optimise their loops.
UNOPTIMISED = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def run(func: tirx.PrimFunc, target: tvm.target.Target, inputs: list[Array]) -> list[Array]:
    """What `func` writes; inputs are given, outputs are the parameters after them."""
    library = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target).jit()
    outputs = [
        np.zeros([int(extent) for extent in parameter.ty.shape], str(parameter.ty.dtype))
        for parameter in func.params[len(inputs) :]
    ]
    tensors = [tvm.runtime.tensor(array) for array in [*inputs, *outputs]]
    library["main"](*tensors)
    return [tensor.numpy() for tensor in tensors[len(inputs) :]]


def check(func: tirx.PrimFunc, target: Target, inputs: int = 1) -> tirx.PrimFunc:
    """The default program of `func`, after comparing it with `func` itself."""
    with target.tvm:
        scheduled = schedule_default(func, target)
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([int(extent) for extent in parameter.ty.shape]).astype(str(parameter.ty.dtype))
        for parameter in func.params[:inputs]
    ]
    for expected, actual in zip(run(func, UNOPTIMISED, arrays), run(scheduled, target.tvm, arrays), strict=True):
        scale = np.abs(expected).max(initial=1.0)
        np.testing.assert_allclose(actual / scale, expected / scale, rtol=0, atol=3e-6)
    return scheduled


def loops_of(func: tirx.PrimFunc, kind: Any) -> list[int]:
    """The extents of all loops of a kind."""
    found: list[int] = []

    def visit(loop: Any) -> None:
        if loop.kind == kind:
            found.append(int(loop.extent))

    tvm_ffi.structural_walk(func.body, ((tirx.For, visit),))
    return found


def parallel(func: tirx.PrimFunc) -> list[int]:
    return loops_of(func, tirx.ForKind.PARALLEL)


def vectors(func: tirx.PrimFunc) -> list[int]:
    return loops_of(func, tirx.ForKind.VECTORIZED)


# Rows and columns with and without a power of two in them, and primes larger than any register.
SHAPES = [(1, 16), (7, 64), (12, 97), (5, 211), (33, 48), (3, 1), (64, 30)]


@pytest.mark.parametrize("shape", SHAPES)
def test_elementwise_chain(target: Target, shape: tuple[int, int]) -> None:
    x = te.placeholder(shape, name="x")
    scheduled = check(lowered(x, topi.multiply(topi.fast_tanh(x), topi.fast_exp(topi.negative(x)))), target)
    assert parallel(scheduled)
    widest = np.gcd(shape[1], target.vector_lanes)
    assert set(vectors(scheduled)) == ({widest} if widest > 2 else set())


@pytest.mark.parametrize("shape", SHAPES[::2])
def test_softmax(target: Target, shape: tuple[int, int]) -> None:
    x = te.placeholder(shape, name="x")
    assert parallel(check(lowered(x, topi.nn.fast_softmax(x, axis=-1)), target))


@pytest.mark.parametrize(("shape", "axis"), [((40, 96), 1), ((40, 96), 0), ((6, 5, 7, 8), (2, 3)), ((13, 17), 1)])
@pytest.mark.parametrize("reduce", [topi.sum, topi.max])
def test_reductions(target: Target, shape: tuple[int, ...], axis: Any, reduce: Body) -> None:
    x = te.placeholder(shape, name="x")
    scheduled = check(lowered(x, reduce(x, axis)), target)
    assert parallel(scheduled)
    assert bool(vectors(scheduled)) == (shape != (13, 17) and shape[-1] >= 2 * np.gcd(shape[-1], target.vector_lanes))


def test_argmax_of_two_results_falls_back_safely(target: Target) -> None:
    x = te.placeholder((9, 64), name="x")
    check(lowered(x, topi.argmax(x, axis=1)), target)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 3), (1, 97), (8, 16), (8, 17), (17, 16), (17, 97), (40, 3), (40, 17)]
)
def test_matmul_with_epilogue(target: Target, rows: int, columns: int) -> None:
    func = fused(
        target,
        lambda x, w, b: op.nn.relu(op.add(op.matmul(x, w), b)),
        (rows, 24),
        (24, columns),
        (columns,),
    )
    scheduled = check(func, target, inputs=3)
    assert parallel(scheduled)
    assert target.vector_lanes in vectors(scheduled) or columns < target.vector_lanes


def test_heads_of_attention_do_not_share_a_tile(target: Target) -> None:
    """Tiling along the heads would load a new operand for every row."""
    func = fused(target, op.matmul, (1, 12, 16, 8), (1, 12, 8, 32))
    scheduled = check(func, target, inputs=2)
    assert 12 not in loops_of(scheduled, tirx.ForKind.UNROLLED)


@pytest.mark.parametrize(
    ("data", "weight", "attributes"),
    [
        ((1, 8, 9, 9), (16, 8, 3, 3), {"padding": [1, 1]}),
        ((2, 3, 11, 13), (7, 3, 3, 3), {"strides": [2, 2]}),
        ((1, 16, 7, 7), (32, 4, 3, 3), {"groups": 4, "padding": [1, 1]}),
        ((1, 33, 8, 8), (33, 1, 5, 5), {"groups": 33, "padding": [2, 2]}),
        ((1, 4, 17, 17), (1, 4, 3, 3), {"dilation": [2, 2]}),
    ],
)
def test_convolutions(
    target: Target, data: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    x, w = te.placeholder(data, name="x"), te.placeholder(weight, name="w")
    strides, padding = attributes.get("strides", [1, 1]), attributes.get("padding", [0, 0])
    y = topi.nn.group_conv2d_nchw(
        x, w, strides, padding, attributes.get("dilation", [1, 1]), attributes.get("groups", 1)
    )
    assert parallel(check(lowered(x, w, topi.nn.relu(y)), target, inputs=2))


@pytest.mark.parametrize("threads", [3, 16, 24])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 2048, 1000), (49, 1152, 192), (49, 512, 512)])
def test_no_core_waits_long_for_the_busiest(threads: int, rows: int, depth: int, columns: int) -> None:
    x, w = te.placeholder((rows, depth), name="x"), te.placeholder((depth, columns), name="w")
    scheduled = schedule_default(lowered(x, w, topi.nn.relu(topi.matmul(x, w))), resolve_target(threads=threads))
    pieces = max(parallel(scheduled))
    assert -(-pieces // threads) * threads / pieces < 2  # with the best tile for one core up to 4.8


@pytest.mark.parametrize("channels", [64, 40, 7])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling_reads_what_it_pools_without_a_padded_copy(target: Target, channels: int, kind: str) -> None:
    x = te.placeholder((1, 9, 9, channels), name="x")
    y = topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), kind, layout="NHWC")
    scheduled = check(lowered(x, y), target)
    copies = [buffer for buffer in scheduled.body.block.alloc_buffers if "pad" in buffer.name]
    assert not copies
    assert set(vectors(scheduled)) == ({np.gcd(channels, target.vector_lanes)} if channels > 7 else set())


@pytest.mark.parametrize(("size", "stride", "channels"), [(14, 1, 64), (15, 2, 48), (56, 2, 32), (7, 1, 33)])
def test_depthwise_convolutions_have_no_copy_of_the_image(
    target: Target, size: int, stride: int, channels: int
) -> None:
    layout = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    func = fused(
        target,
        lambda x, w: op.nn.relu(op.nn.conv2d(x, w, strides=stride, padding=1, groups=channels, **layout)),
        (1, size, size, channels),
        (channels, 3, 3, 1),
    )
    scheduled = check(func, target, inputs=2)
    assert len(parallel(scheduled)) == 1


@pytest.mark.parametrize("shape", [(1, 24, 64), (3, 5, 48), (2, 4, 7)])
@pytest.mark.parametrize("which", ["layer_norm", "softmax"])
def test_all_stages_of_a_row_are_in_one_parallel_loop(target: Target, shape: tuple[int, ...], which: str) -> None:
    x = te.placeholder(shape, name="x")
    scale, shift = (te.placeholder(shape[-1:], name=name) for name in ("scale", "shift"))
    if which == "softmax":
        func = lowered(x, topi.nn.fast_softmax(x, axis=-1))
    else:
        func = lowered(x, scale, shift, topi.nn.layer_norm(x, scale, shift, [len(shape) - 1], 1e-5))
    assert len(loops_of(check(func, target), tirx.ForKind.PARALLEL)) == 1


def test_rows_that_other_rows_need_too_are_computed_once(target: Target) -> None:
    x = te.placeholder((4, 16, 32), name="x")
    maxima = topi.max(x, axis=2)
    both = te.compute((4, 16, 32), lambda i, j, k: x[i, j, k] - maxima[i, j] - maxima[i, 15 - j], name="both")
    assert len(loops_of(check(lowered(x, both), target), tirx.ForKind.PARALLEL)) > 1


@pytest.mark.parametrize("which", ["mean", "pooling"])
def test_a_division_is_in_the_loop_of_its_sum(target: Target, which: str) -> None:
    x = te.placeholder((1, 14, 14, 48), name="x")
    if which == "mean":
        body = topi.divide(topi.sum(x, axis=[1, 2], keepdims=True), tirx.const(14.0 * 14.0, "float32"))
    else:
        body = topi.nn.pool2d(x, [3, 3], [1, 1], [1, 1], [1, 1, 1, 1], "avg", layout="NHWC", count_include_pad=False)
    assert len(loops_of(check(lowered(x, body), target), tirx.ForKind.PARALLEL)) == 1


def test_what_one_core_does_sooner_is_not_spread(target: Target) -> None:
    """A gate: few values, computed from a short vector, that scale a whole image."""
    image, pooled = te.placeholder((1, 28, 28, 32), name="image"), te.placeholder((1, 8), name="pooled")
    weight = te.placeholder((8, 32), name="weight")
    gate = topi.reshape(topi.sigmoid(topi.matmul(pooled, weight)), (1, 1, 1, 32))
    scheduled = check(lowered(image, pooled, weight, topi.multiply(image, gate)), target)
    assert len(loops_of(scheduled, tirx.ForKind.PARALLEL)) == 1


def test_fewer_rows_than_threads_are_spread_stage_by_stage() -> None:
    x = te.placeholder((2, 4096), name="x")
    func = lowered(x, topi.nn.fast_softmax(x, axis=1))
    assert len(loops_of(check(func, resolve_target(threads=4)), tirx.ForKind.PARALLEL)) > 1


def test_transpose_in_square_tiles(target: Target) -> None:
    x = te.placeholder((4, 32, 48), name="x")
    scheduled = check(lowered(x, topi.transpose(x, [0, 2, 1])), target)
    assert vectors(scheduled) == [target.vector_lanes]
    assert 16 in loops_of(scheduled, tirx.ForKind.SERIAL)


def test_function_that_cannot_be_scheduled_is_left_alone(target: Target) -> None:
    x = te.placeholder((4, 8), name="x")
    inner = lowered(x, topi.sort(x, axis=1))
    scheduled = schedule_default(inner, target)
    assert run(scheduled, UNOPTIMISED, [np.arange(32, dtype=np.float32).reshape(4, 8)[:, ::-1].copy()])


def test_scheduling_twice_gives_the_same_program(target: Target) -> None:
    x, w = te.placeholder((16, 32), name="x"), te.placeholder((32, 48), name="w")
    func = lowered(x, w, topi.matmul(x, w))
    programs = [schedule_default(func, target) for _ in range(2)]
    tvm.ir.assert_structural_equal(*programs)
    assert isinstance(s_tir.Schedule(programs[0]), s_tir.Schedule)


@settings(max_examples=6, deadline=None)
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    axis=st.integers(0, 3),
    which=st.sampled_from(["softmax", "norm", "sum", "transpose", "slice"]),
)
def test_any_shape(shape: list[int], axis: int, which: str) -> None:
    target = resolve_target(threads=2)
    x = te.placeholder(shape, name="x")
    axis %= len(shape)
    bodies: dict[str, Body] = {
        "softmax": lambda: topi.nn.fast_softmax(x, axis=axis),
        "norm": lambda: topi.multiply(topi.subtract(x, topi.max(x, axis=axis, keepdims=True)), x),
        "sum": lambda: topi.sum(topi.multiply(x, x), axis=axis, keepdims=True),
        "transpose": lambda: topi.transpose(x, [*range(axis, len(shape)), *range(axis)]),
        "slice": lambda: topi.fast_exp(topi.strided_slice(x, [0], [max(1, shape[0] // 2)], [1], axes=[0])),
    }
    check(lowered(x, bodies[which]()), target)
