"""Operators against closed forms, published figures, and their own source text under other names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tvm
import tvm.script
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te, tirx

from slipstream.frontends import load_model
from slipstream.graph.describe.key import operator_key
from slipstream.graph.describe.names import describe
from slipstream.graph.operators import Operator, count_flops, extract_operators
from slipstream.graph.prepare import prepare
from slipstream.graph.relax_walk import bindings_of_main, is_call_tir
from slipstream.machine.target import resolve_target

op = relax.op


def prepared(shapes: list[tuple[Any, ...]], body: Callable[..., Any], dtype: str = "float32") -> tvm.IRModule:
    """`body` of one parameter per shape, as a prepared module."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(body(*parameters))
        builder.emit_func_output(result)
    return prepare(builder.get(), resolve_target())[0]


def heaviest(shapes: list[tuple[Any, ...]], body: Callable[..., Any], dtype: str = "float32") -> Operator:
    return extract_operators(prepared(shapes, body, dtype))[0]


# What the FLOPs are


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "kernel", "stride", "padding", "output"),
    [
        (16, 32, 1, 3, 1, 1, 14),
        (16, 32, 1, 3, 2, 1, 7),
        (16, 32, 1, 1, 1, 0, 14),
        (16, 32, 4, 3, 1, 1, 14),
        (16, 16, 16, 3, 1, 1, 14),
        (16, 16, 16, 5, 2, 2, 7),
        (16, 32, 16, 3, 1, 1, 14),
    ],
)
def test_flops_of_a_convolution_are_its_multiply_adds_and_its_epilogue(
    channels: int, filters: int, groups: int, kernel: int, stride: int, padding: int, output: int
) -> None:
    operator = heaviest(
        [(2, channels, 14, 14), (filters, channels // groups, kernel, kernel), (1, filters, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, strides=stride, padding=padding, groups=groups), b)),
    )
    elements = 2 * output * output * filters
    assert operator.flops == elements * (2 * kernel * kernel * channels // groups + 2)
    assert operator.kinds[-2:] == ("add", "relu")


def test_flops_of_matmuls() -> None:
    dense = heaviest([(128, 96), (96, 64), (64,)], lambda x, w, b: op.add(op.matmul(x, w), b))
    assert dense.flops == 2 * 128 * 96 * 64 + 128 * 64
    batched = heaviest([(1, 12, 10, 8), (1, 12, 8, 10)], op.matmul)
    assert batched.flops == 2 * 12 * 10 * 8 * 10
    quantised = heaviest([(4, 20), (20, 8)], lambda x, w: op.matmul(x, w, out_dtype="int32"), dtype="int8")
    assert quantised.flops == 2 * 4 * 20 * 8


@pytest.mark.parametrize(
    ("shapes", "body", "flops"),
    [
        ([(1, 3, 8, 8)], lambda x: op.permute_dims(x, [0, 2, 3, 1]), 0),
        ([(1, 3, 8), (1, 4, 8)], lambda x, y: op.concat([x, y], 1), 0),
        ([(1, 3, 8)], lambda x: op.nn.pad(x, [0, 0, 1, 1, 2, 2]), 0),
        ([(4, 20)], op.nn.relu, 4 * 20),
        ([(4, 20)], lambda x: op.nn.leakyrelu(x, 0.1), 4 * 20),
        ([(4, 20)], op.sqrt, 4 * 20),
        ([(4, 20)], lambda x: op.max(x, 1), 4 * 20),
        ([(1, 8, 20, 20)], lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1)), 9 * 8 * 10 * 10),
        # The number of pixels averaged over depends on the place: integers, and so not counted.
        ([(1, 8, 20, 20)], lambda x: op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1)), 10 * 8 * 10 * 10),
    ],
)
def test_flops_of_everything_else(shapes: list[tuple[int, ...]], body: Callable[..., Any], flops: int) -> None:
    assert heaviest(shapes, body).flops == flops


def test_flops_count_a_repeated_expression_once() -> None:
    # x is clamped, reduced by floor(x / ln 2) and put into a polynomial of degree 6: some two dozen operations,
    # though the tree that TOPI writes has more than eighty.
    assert 20 <= heaviest([(4, 20)], op.exp).flops / 80 <= 30


def test_a_loop_of_unknown_length_counts_as_one_iteration() -> None:
    length = te.var("n", dtype="int64")
    x = te.placeholder((length, 8), name="x")
    y = te.compute((length, 8), lambda i, j: x[i, j] * 2.0 + 1.0)
    assert count_flops(te.create_prim_func([x, y])) == 8 * 2


# What the key is

SOURCE = """
# from tvm.script import tirx as T
@T.prim_func(private=True, s_tir=True)
def {function}({a}: T.Buffer((T.int64({rows}), T.int64(8)), "{dtype}"), {b}: T.Buffer((T.int64(8), T.int64(16)), "{dtype}"), {c}: T.Buffer((T.int64({rows}), T.int64(16)), "{dtype}")):
    T.func_attr({{"layout_free_buffers": [{free}], "tirx.noalias": True}})
    {t} = T.sblock_alloc_buffer((T.int64({rows}), T.int64(16)), "{dtype}")
    for {i}, {j}, {k} in T.grid(T.int64({rows}), T.int64(16), T.int64(8)):
        with T.sblock("{block}"):
            {u}, {v}, {w} = T.axis.remap("SSR", [{i}, {j}, {k}])
            with T.init():
                {t}[{u}, {v}] = T.{dtype}(0)
            {t}[{u}, {v}] = {t}[{u}, {v}] + {a}[{u}, {w}] * {b}[{w}, {v}]
    for {x}, {y} in T.grid(T.int64({rows}), T.int64(16)):
        with T.sblock("{block}_{function}"):
            {p}, {q} = T.axis.remap("SS", [{x}, {y}])
            {annotation}
            {c}[{p}, {q}] = T.{epilogue}({t}[{p}, {q}], T.{dtype}({constant}))
"""  # noqa: E501
NAMES = ("function", "block", *"abcijkpqtuvwxy")
MEANING = {
    "rows": 4,
    "dtype": "float32",
    "free": "1",
    "annotation": "pass",
    "epilogue": "max",
    "constant": "0.5",
}


def parse(**changes: Any) -> tirx.PrimFunc:
    names = {name: f"{name}0" for name in NAMES}
    return tvm.script.from_source(SOURCE.format(**{**names, **MEANING, **changes}))


@pytest.fixture(scope="module")
def known() -> tirx.PrimFunc:
    return parse()


def test_key_of_a_known_function(known: tirx.PrimFunc) -> None:
    """The canonical text has changed if this fails: then raise the scheme's number and write the new key here."""
    assert operator_key(known) == "d7e2cafe6d407d4bdbc6"


identifier = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True).map(lambda name: f"n_{name}")  # no keyword


@settings(max_examples=4, deadline=None)
@given(st.lists(identifier, min_size=len(NAMES), max_size=len(NAMES), unique=True))
def test_key_and_name_do_not_depend_on_names(known: tirx.PrimFunc, names: list[str]) -> None:
    renamed = parse(**dict(zip(NAMES, names, strict=True)))
    assert operator_key(renamed) == operator_key(known)
    assert describe(renamed) == describe(known)


def test_key_allows_a_name_for_several_variables_in_turn(known: tirx.PrimFunc) -> None:
    assert operator_key(parse(x="i0", y="j0", p="u0", q="v0")) == operator_key(known)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 5},
        {"dtype": "float16"},
        {"free": "0, 1"},
        {"free": ""},
        {"epilogue": "min"},
        {"constant": "0.25"},
        {"annotation": 'T.sblock_attr({"schedule_rule": "none"})'},
    ],
)
def test_key_depends_on_what_is_computed(known: tirx.PrimFunc, changes: dict[str, Any]) -> None:
    assert operator_key(parse(**changes)) != operator_key(known)


def test_key_depends_on_every_attribute_of_a_convolution() -> None:
    def key(stride: int = 1, dilation: int = 1, groups: int = 1, channels: int = 8, relu: bool = True) -> str:
        def body(x: Any, w: Any) -> Any:
            y = op.nn.conv2d(x, w, strides=stride, padding=dilation, dilation=dilation, groups=groups)
            return op.nn.relu(y) if relu else op.add(y, y)

        return heaviest([(1, channels, 12, 12), (8, channels // groups, 3, 3)], body).key

    keys = [key(), key(stride=2), key(dilation=2), key(groups=2), key(channels=4), key(relu=False)]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("global_symbol", "somebody"), ("op_pattern", 4), ("target", tvm.target.Target("llvm"))],
)
def test_key_ignores_what_surrounds_the_computation(known: tirx.PrimFunc, attribute: str, value: Any) -> None:
    assert operator_key(known.with_attr(attribute, value)) == operator_key(known)
    assert operator_key(known.without_attr("tirx.noalias")) == operator_key(known)


def test_key_does_not_depend_on_the_process(known: tirx.PrimFunc) -> None:
    script = (
        "from slipstream.tvm_bridge.imports import import_tvm_without_torch\n"
        "import_tvm_without_torch()\n"
        "import sys, tvm.script\n"
        "from slipstream.graph.describe.key import operator_key\n"
        "print(operator_key(tvm.script.from_source(sys.stdin.read())))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script],
        input=known.script(),
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.strip() == operator_key(known)


# What the names say


@pytest.mark.parametrize(
    ("shapes", "body", "name"),
    [
        ([(1, 8, 100), (16, 8, 5)], lambda x, w: op.nn.conv1d(x, w, 2, 2), "conv1d 5/2 8→16 50"),
        (
            [(1, 4, 8, 20, 20), (6, 4, 3, 3, 3)],
            lambda x, w: op.nn.conv3d(x, w, padding=1),
            "conv3d 3x3x3 4→6 8x20x20",
        ),
        (
            [(2, 8, 20, 20), (16, 2, 3, 3)],
            lambda x, w: op.nn.conv2d(x, w, groups=4, padding=1),
            "grouped conv2d 3x3 8→16 (4 groups) 20x20 batch 2",
        ),
        (
            [(1, 8, 20, 20), (16, 1, 3, 3)],
            lambda x, w: op.nn.conv2d(x, w, groups=8, padding=1),
            "depthwise conv2d 3x3 8→16 20x20",
        ),
        (
            [(1, 8, 20, 7), (4, 8, 3, 5)],
            lambda x, w: op.nn.conv2d(x, w, strides=(2, 1), padding=(2, 4), dilation=2),
            "conv2d 3x5/2x1 dilated 2 8→4 10x7",
        ),
        (
            [(1, 8, 20, 20), (8, 16, 3, 3)],
            lambda x, w: op.nn.conv2d_transpose(x, w, strides=2, padding=1),
            "conv2d_transpose 3x3/2 8→16 39x39",
        ),
        (
            [(1, 8, 20, 20)],
            lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1)),
            "max_pool2d 3x3/2 8 10x10",
        ),
        (
            [(1, 20, 20, 8)],
            lambda x: op.nn.avg_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
            "avg_pool2d 2x2/2 8 10x10",
        ),
        ([(4, 20), (20, 8)], op.matmul, "matmul 4x20x8"),
        ([(12, 128, 64), (12, 64, 96)], op.matmul, "batch_matmul 12x128x64x96"),
        ([(1, 12, 16, 16)], op.nn.softmax, "softmax 12x16x16"),
        ([(4, 20)], op.nn.log_softmax, "log_softmax 4x20"),
        ([(4, 8, 20), (20,), (20,)], lambda x, g, b: op.nn.layer_norm(x, g, b, -1), "layer_norm 4x8x20"),
        ([(2, 8, 6, 5), (8,), (8,)], lambda x, g, b: op.nn.group_norm(x, g, b, 4, 1, [2, 3]), "group_norm 2x8x6x5"),
        ([(2, 8, 6, 5), (8,), (8,)], lambda x, g, b: op.nn.instance_norm(x, g, b, 1, [2, 3]), "instance_norm 2x8x6x5"),
        ([(1, 7, 7, 8)], lambda x: op.mean(x, [1, 2]), "mean 7x7x8"),
        ([(4, 20)], op.sigmoid, "sigmoid 4x20"),
        ([(4, 20)], op.nn.silu, "silu 4x20"),
        ([(4, 20)], op.nn.gelu, "gelu 4x20"),
        ([(4, 20)], op.tanh, "tanh 4x20"),
        ([(4, 20)], lambda x: op.clip(x, 0, 6), "clip 4x20"),
        ([(4, 20), (4, 20)], lambda x, y: op.multiply(op.sigmoid(x), y), "sigmoid 4x20 + multiply"),
        ([(1, 3, 24, 24)], lambda x: op.permute_dims(x, [0, 2, 3, 1]), "transpose 1x3x24x24"),
        ([(1, 3, 8), (1, 4, 8)], lambda x, y: op.concat([x, y], 1), "concat 1x7x8"),
        ([(1, 6, 8)], lambda x: op.reshape(op.nn.relu(x), (6, 2, 4)), "relu 1x6x8 + reshape"),
        ([(4, 40)], lambda x: op.strided_slice(x, [1], [2], [30]), "slice 4x40→4x28"),
        ([(4, 20)], lambda x: op.argmax(x, 1), "argmax 4x20"),
    ],
)
def test_names(shapes: list[tuple[int, ...]], body: Callable[..., Any], name: str) -> None:
    assert heaviest(shapes, body).name == name


def test_a_half_precision_softmax_is_called_the_same() -> None:
    assert heaviest([(4, 20)], op.nn.softmax, dtype="float16").name == "softmax 4x20"


# What is extracted


def test_another_view_of_a_tensor_is_no_operator() -> None:
    assert extract_operators(prepared([(1, 6, 8)], lambda x: op.reshape(x, (6, 2, 4)))) == []


def test_functions_that_compute_the_same_are_one_operator() -> None:
    a = relax.Var("a", relax.TensorType((4, 8), "float32"))
    b = relax.Var("b", relax.TensorType((8, 16), "float32"))
    builder = relax.BlockBuilder()
    f, g, h = (builder.add_func(parse(constant=n), name) for n, name in enumerate("fgh"))
    with builder.function("main", [a, b]):
        with builder.dataflow():
            for function in (f, g, f, h):
                result = builder.emit(relax.call_tir(function, [a, b], relax.TensorType((4, 16), "float32")))
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    module = builder.get()
    # Only now: the builder itself unites what it knows to be equal.
    module.update_func(g, parse(constant=0, **dict(zip(NAMES, NAMES[::-1], strict=True))))
    same, different = extract_operators(module)
    assert (same.weight, same.functions) == (3, ("f", "g"))
    assert (different.weight, different.functions) == (1, ("h",))
    assert same.shapes == (((4, 8), "float32"), ((8, 16), "float32"), ((4, 16), "float32"))
    assert same.bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)


@pytest.fixture(scope="module")
def extracted() -> Callable[[str], tuple[tvm.IRModule, list[Operator]]]:
    cache: dict[str, tuple[tvm.IRModule, list[Operator]]] = {}

    def extract(name: str) -> tuple[tvm.IRModule, list[Operator]]:
        if name not in cache:
            module = prepare(load_model(f"zoo:{name}").module, resolve_target())[0]
            cache[name] = module, extract_operators(module)
        return cache[name]

    return extract


def test_key_and_name_survive_printing_and_parsing(extracted: Any) -> None:
    _, operators = extracted("transformer_encoder")
    for operator in operators:
        if operator.kinds[0] in ("softmax", "layer_norm", "transpose", "batch_matmul"):
            parsed = tvm.script.from_source(operator.func.script())
            assert (operator_key(parsed), describe(parsed)) == (operator.key, (operator.name, operator.kinds))


def test_resnet18_has_the_published_multiply_adds(extracted: Any) -> None:
    _, operators = extracted("resnet18")
    flops = sum(operator.weight * operator.flops for operator in operators if operator.kinds[0] in ("conv2d", "matmul"))
    assert flops == pytest.approx(2 * 1.814e9, rel=0.02)


def test_every_call_of_resnet18_is_counted(extracted: Any) -> None:
    module, operators = extracted("resnet18")
    calls = [binding for binding in bindings_of_main(module) if is_call_tir(binding.value)]
    assert sum(operator.weight for operator in operators) == len(calls)
    assert {name for operator in operators for name in operator.functions} == {
        str(call.value.args[0].name_hint) for call in calls
    }
    totals = [operator.weight * operator.flops for operator in operators]
    assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (
            "resnet18",
            {
                "conv2d 3x3 64→64 56x56 + add + relu": 2,
                "conv2d 3x3/2 64→128 28x28 + add + relu": 1,
                "conv2d 1x1/2 64→128 28x28 + add": 1,
                "conv2d 3x3 128→128 28x28 + add + add + relu": 2,
                "max_pool2d 3x3/2 64 56x56": 1,
                "matmul 1x512x1000 + add": 1,
            },
        ),
        pytest.param(
            "mobilenet_v2",
            {
                "depthwise conv2d 3x3 32 112x112 + add + clip": 1,
                "depthwise conv2d 3x3/2 96 56x56 + add + clip": 1,
                "depthwise conv2d 3x3 384 14x14 + add + clip": 4,
                "conv2d 1x1 384→64 14x14 + add + add": 3,
            },
            marks=pytest.mark.slow,
        ),
        (
            "transformer_encoder",
            {
                "matmul 128x512x2048 + add + relu": 6,
                "batch_matmul 8x128x128x64": 6,
                "softmax 8x128x128": 6,
                "layer_norm 128x512": 12,
            },
        ),
    ],
)
def test_names_and_weights_of_known_layers(extracted: Any, model: str, names: dict[str, int]) -> None:
    # Not of layers whose rows are computed wider on some CPUs (`whole_tiles.py`), which is in their names.
    _, operators = extracted(model)
    weights = {operator.name: operator.weight for operator in operators}
    assert {name: weights.get(name) for name in names} == names
