"""Concatenations in place: nothing is copied that can be written where it ends up, and the numbers stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import te, tirx
from tvm.script import tirx as T  # noqa: N812

import slipstream
from slipstream.artifact.manifest import Manifest
from slipstream.errors import TargetError
from slipstream.frontends.inputs import random_inputs
from slipstream.graph.build import apply_programs
from slipstream.graph.concatenations import _takes_boxes, for_boxes
from slipstream.graph.execution_plan import lower_to_calls, plan_calls
from slipstream.graph.operators import extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target
from slipstream.runtime.plan import BOX, prepared_name

SIDE = 6


class Net:
    """A small convolutional network in the making."""

    def __init__(self, *channels: int) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.channels = {f"x{n}": count for n, count in enumerate(channels)}
        self.inputs = list(self.channels)

    def add(self, kind: str, inputs: Sequence[str], channels: int, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self.channels[name] = channels
        return name

    def conv(self, x: str, filters: int, size: int = 1) -> str:
        weight = self.rng.standard_normal((filters, self.channels[x], size, size)).astype(np.float32) / 4
        self.weights.append(numpy_helper.from_array(weight, f"w{len(self.weights)}"))
        name = self.add("Conv", [x, self.weights[-1].name], filters, pads=[size // 2] * 4)
        return self.add("Relu", [name], filters)

    def pool(self, x: str) -> str:
        return self.add("MaxPool", [x], self.channels[x], kernel_shape=[3, 3], pads=[1] * 4)

    def relu(self, x: str) -> str:
        return self.add("Relu", [x], self.channels[x])

    def join(self, *parts: str) -> str:
        return self.add("Concat", parts, sum(self.channels[part] for part in parts), axis=1)

    def constant(self, channels: int) -> str:
        values = self.rng.standard_normal((1, channels, SIDE, SIDE)).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, f"w{len(self.weights)}"))
        self.channels[self.weights[-1].name] = channels
        return self.weights[-1].name

    def model(self, *results: str) -> onnx.ModelProto:
        tensors = [
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, self.channels[name], SIDE, SIDE])
                for name in names
            ]
            for names in (self.inputs, results)
        ]
        graph = helper.make_graph(self.nodes, "net", *tensors, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fire() -> tuple[onnx.ModelProto, int]:
    net = Net(8)
    squeezed = net.conv("x0", 4)
    joined = net.join(net.conv(squeezed, 16), net.conv(squeezed, 8, size=3))
    return net.model(net.conv(joined, 5)), 0


def dense() -> tuple[onnx.ModelProto, int]:
    """Each result is the first part of the next one, and read in between."""
    net = Net(8)
    joined = net.conv("x0", 16)
    for _ in range(3):
        joined = net.join(joined, net.conv(net.conv(joined, 6), 7, size=3))
    return net.model(net.pool(joined)), 0


def dense_lists() -> tuple[onnx.ModelProto, int]:
    """All results so far are joined anew each time: the last one has all the others in it."""
    net = Net(8)
    parts = [net.conv("x0", 16)]
    for _ in range(3):
        joined = net.join(*parts) if len(parts) > 1 else parts[0]
        parts.append(net.conv(joined, 8, size=3))
    return net.model(net.conv(net.join(*parts), 4)), 0


def inception() -> tuple[onnx.ModelProto, int]:
    """Parts that are poolings and concatenations themselves; the whole is a result of the model."""
    net = Net(8)
    inner = net.conv("x0", 12)
    pair = net.join(net.conv(inner, 3, size=3), net.conv(inner, 5))
    return net.model(net.join(net.conv("x0", 7), pair, net.pool(inner))), 0


def not_computed() -> tuple[onnx.ModelProto, int]:
    """An input and a constant are copied."""
    net = Net(3)
    return net.model(net.relu(net.join("x0", net.conv("x0", 16), net.constant(2)))), 2


def also_results() -> tuple[onnx.ModelProto, int]:
    """A result of the model lies in the caller's memory, as does what a part of it is copied to."""
    net = Net(8, 3)
    shown, hidden = (net.add("Sin", [x], net.channels[x]) for x in net.inputs)
    return net.model(shown, net.join(shown, hidden)), 1


def twice() -> tuple[onnx.ModelProto, int]:
    """The same part at two places of a result."""
    net = Net(8)
    part = net.add("Sin", ["x0"], 8)
    return net.model(net.join(part, part)), 1


def in_two() -> tuple[onnx.ModelProto, int]:
    """A part of two results, in another order: it is in place in the last one."""
    net = Net(8)
    a, b, c = (net.conv("x0", filters) for filters in (8, 9, 11))
    return net.model(net.conv(net.join(a, b), 4), net.conv(net.join(c, a), 4)), 1


CASES = [fire, dense, dense_lists, inception, not_computed, also_results, twice, in_two]


def plan_of(model: onnx.ModelProto) -> list[str]:
    target = resolve_target("cpu")
    prepared = prepare(slipstream.load_model(model).module, target)[0]
    assert not any("concat" in operator.kinds for operator in extract_operators(prepared))
    with target.tvm:
        calls = lower_to_calls(with_weights_apart(apply_programs(prepared, target)), target)
    return [step.function for step in plan_calls(calls, target.vector_lanes).steps]


def with_weights_apart(mod: object) -> object:
    from slipstream.graph.build import _separate_weights

    return _separate_weights(mod, largest_scalar=0)[0]


def check(model: onnx.ModelProto, folder: Path) -> None:
    slipstream.compile(model, folder)
    assert Manifest.read(folder).prefix
    compiled = slipstream.load(folder)
    feeds = random_inputs(compiled.inputs, np.random.default_rng(1))
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for threads in (1, 2):
        with slipstream.load(folder, threads=threads) as run:
            found = run(feeds)
        for name, wanted in zip([result.name for result in model.graph.output], expected, strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", CASES)
def test_parts_are_written_where_they_end_up(make: Callable[[], tuple[onnx.ModelProto, int]], tmp_path: Path) -> None:
    model, copies = make()
    steps = plan_of(model)
    assert not [step for step in steps if step.startswith("concat")]
    assert len([step for step in steps if step.startswith("copy")]) == copies
    assert any(BOX in step and prepared_name(step) in step.split(BOX)[0] for step in steps)
    check(model, tmp_path / "model")


def test_what_is_mostly_not_computed_stays_a_concatenation(tmp_path: Path) -> None:
    net = Net(32, 8)
    model = net.model(net.relu(net.join("x0", net.conv("x1", 8))))
    operators = extract_operators(prepare(slipstream.load_model(model).module, resolve_target("cpu"))[0])
    assert any({"concat", "relu"} <= set(operator.kinds) for operator in operators)
    check(model, tmp_path / "model")


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    net = Net(*map(int, rng.integers(1, 20, 2)))
    tensors = [*net.inputs, net.constant(int(rng.integers(1, 5)))]
    for _ in range(int(rng.integers(6, 16))):
        kind = rng.choice(["conv", "pool", "relu", "join", "join"])
        x = str(rng.choice(tensors[-5:]))
        if kind == "conv":
            tensors.append(net.conv(x, int(rng.integers(1, 33)), size=int(rng.choice([1, 3]))))
        elif kind == "join":
            tensors.append(net.join(*map(str, rng.choice(tensors[-5:], int(rng.integers(2, 4))))))
        else:
            tensors.append(net.pool(x) if kind == "pool" else net.relu(x))
    last = net.conv(tensors[-1], 4)
    results = {last, *map(str, rng.choice(tensors[3:], 2))}
    check(net.model(*sorted(results)), tmp_path / "model")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", [fire, inception])
def test_in_half_precision(make: Callable[[], tuple[onnx.ModelProto, int]], dtype: str, tmp_path: Path) -> None:
    try:
        resolve_target("cpu", dtype=dtype)
    except TargetError:
        pytest.skip(f"this CPU does not compute in {dtype}")
    slipstream.compile(make()[0], tmp_path / "model", dtype=dtype)  # compares with ONNX Runtime


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_along_any_axis(axis: int, tmp_path: Path) -> None:
    shapes = [[2, 3, 5], [2, 3, 5]]
    shapes[1][axis] = 4
    nodes = [helper.make_node("Sin", [f"x{n}"], [f"s{n}"]) for n in range(2)]
    nodes += [helper.make_node("Concat", ["s0", "s1"], ["j"], axis=axis), helper.make_node("Cos", ["j"], ["y"])]
    result = list(shapes[0])
    result[axis] += 4
    inputs = [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, shape) for n, shape in enumerate(shapes)]
    graph = helper.make_graph(nodes, "joined", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert not [step for step in plan_of(model) if step.startswith(("concat", "copy"))]
    check(model, tmp_path / "model")


def test_a_function_that_gives_addresses_away_takes_no_boxes() -> None:
    source = te.placeholder((4, 8), "float32", "source")
    plain = te.create_prim_func([source, te.compute((4, 8), lambda i, j: source[i, j] * 2.0, "doubled")])
    assert _takes_boxes(plain, 0)
    assert _takes_boxes(plain, 1)

    @T.prim_func(private=True, s_tir=True)
    def calls(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4, 8), "float32")) -> None:
        for i, j in T.grid(4, 8):
            with T.sblock("called"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = T.call_pure_extern("float32", "value_at", T.address_of(a[vi, vj]))

    assert not _takes_boxes(calls, 0)
    assert _takes_boxes(calls, 1)

    @T.prim_func(private=True, s_tir=True)
    def matches(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4, 8), "float32")) -> None:
        for i in range(4):
            with T.sblock("row"):
                vi = T.axis.spatial(4, i)
                T.reads(a[vi, 0:8])
                T.writes(b[vi, 0:8])
                row = T.match_buffer(b[vi, 0:8], (1, 8), offset_factor=1)
                for j in range(8):
                    row[0, j] = a[vi, j]

    assert _takes_boxes(matches, 0)
    assert not _takes_boxes(matches, 1)


def test_only_the_distance_of_neighbours_changes() -> None:
    source = te.placeholder((4, 8), "float32", "source")
    func = te.create_prim_func([source, te.compute((4, 8), lambda i, j: source[i, j] * 2.0, "doubled")])
    changed = for_boxes(func, {1: (4, 24)})
    assert [[int(extent) for extent in parameter.ty.shape] for parameter in changed.params] == [[4, 8], [4, 24]]
    assert isinstance(changed, tirx.PrimFunc)
    assert changed.params[0].same_as(func.params[0])
