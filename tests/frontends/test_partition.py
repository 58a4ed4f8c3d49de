"""How models are cut that cannot be compiled as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from slipstream.errors import UnsupportedModelError
from slipstream.frontends import load_model, onnx_clean, onnx_run
from slipstream.frontends.model import CompiledPart
from slipstream.frontends.onnx_cut import Region, cut
from slipstream.frontends.onnx_values import ValueType
from tests.frontends import cut_models
from tests.frontends.cut_models import IMAGE, T, node, weight

COMPILED, ONNX = "compiled", "ONNX Runtime"


@pytest.mark.parametrize(
    ("make", "runs", "left"),
    [
        (cut_models.detector, [COMPILED, ONNX], ["node 'nms': the size of a result of NonMaxSuppression"]),
        (cut_models.nonzero, [COMPILED, ONNX], ["the node of 'places': the size of a result of NonZero"]),
        (cut_models.top_k, [COMPILED, ONNX], ["node 'top': TVM cannot import TopK"]),
        (cut_models.tree_after_matmul, [COMPILED, ONNX], ["node 'forest': TVM cannot import ai.onnx.ml.Tree"]),
        (
            cut_models.tree_between_matmuls,
            [ONNX, COMPILED, ONNX, COMPILED],
            ["node 'scaler': TVM cannot import ai.onnx.ml.Scaler", "node 'forest': TVM"],
        ),
        (
            cut_models.smaller_indices,
            [COMPILED, ONNX],
            ["node 'scatter': TVM cannot import ScatterElements"],
        ),
        (cut_models.axis_as_input, [COMPILED, ONNX, COMPILED], ["node 'add_up': TVM cannot import CumSum"]),
    ],
)
def test_the_fewest_parts_and_the_nodes_to_blame(
    make: Callable[[], onnx.ModelProto], runs: list[str], left: list[str]
) -> None:
    loaded = load_model(make())
    assert [COMPILED if isinstance(part, CompiledPart) else ONNX for part in loaded.parts] == runs
    reasons = [reason for part in loaded.onnx_parts for reason in part.reasons]
    assert len(reasons) == len(left)
    assert all(reason.startswith(start) for reason, start in zip(reasons, left, strict=True))
    with pytest.raises(UnsupportedModelError, match="no --no-partition") as caught:
        load_model(make(), partition=False)
    assert "\n" not in str(caught.value)


def test_a_model_of_which_nothing_can_be_compiled_is_an_error() -> None:
    with pytest.raises(UnsupportedModelError, match=r"nothing of this model .*TreeEnsembleRegressor \(node 'forest'\)"):
        load_model(cut_models.only_trees())


def test_a_model_that_compiles_is_not_cut() -> None:
    loaded = load_model(
        cut_models.model([node("MatMul", "x w", "y")], {"x": (T.FLOAT, [2, 4])}, {"y": T.FLOAT}, {"w": weight(4, 3)})
    )
    assert loaded.parts == ()
    assert loaded.module is not None


@pytest.mark.parametrize(("past", "shapes"), [(0, {}), ("past", {"p": [2, 0, 64]}), (0, {"p": [2, 1, 64]})])
def test_an_input_without_elements(past: int | str, shapes: dict[str, list[int]]) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Concat", "p h", "y", axis=1)]
    inputs = {"p": (T.FLOAT, [2, past, 64]), "x": (T.FLOAT, [2, 130, 64])}
    loaded = load_model(cut_models.model(nodes, inputs, {"y": T.FLOAT}, {"w": weight(64, 64)}), shapes=shapes)
    length = shapes.get("p", [2, 0])[1]
    assert loaded.inputs[0].shape == (2, length, 64)
    assert loaded.outputs[0].shape == (2, 130 + length, 64)
    assert len(loaded.parts) == (0 if length else 2)


def test_nodes_that_no_output_depends_on_are_dropped() -> None:
    nodes = [node("MatMul", "x w", "y"), node("NonZero", "y", "places"), node("Cast", "places", "cast", to=T.FLOAT)]
    loaded = load_model(cut_models.model(nodes, {"x": (T.FLOAT, [2, 4])}, {"y": T.FLOAT}, {"w": weight(4, 3)}))
    assert loaded.parts == ()


@pytest.mark.parametrize("seed", range(40))
def test_regions_are_as_few_as_any_way_to_run_the_graph(seed: int) -> None:
    """On random graphs: every region has its inputs when it runs, and some path changes kind as often as there are
    regions less one, or less two where the first kind is not that of the path."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 14))
    refused = {index for index in range(count) if rng.random() < 0.4}
    sources = [rng.choice(index, min(index, 2), replace=False).tolist() if index else [] for index in range(count)]
    nodes = [
        node("Sum", " ".join(["x", *(f"v{source}" for source in sources[index])]), f"v{index}")
        for index in range(count)
    ]
    graph = cut_models.model(nodes, IMAGE, {f"v{count - 1}": T.FLOAT}, {}).graph
    # Large enough that no region is too small to be compiled.
    types = {name: ValueType("tensor(float)", (1, 3, 1024, 1024)) for name in ("x", *(f"v{i}" for i in range(count)))}
    regions = cut(graph, refused, types)
    assert sorted(index for region in regions for index in region.nodes) == list(range(count))
    done: set[int] = set()
    for region in regions:
        assert all((index in refused) != region.compiled for index in region.nodes)
        assert all(set(sources[index]) <= done | set(region.nodes) for index in region.nodes)
        done |= set(region.nodes)
    changes = [0] * count
    for index in range(count):
        changes[index] = max(
            (changes[source] + ((source in refused) != (index in refused)) for source in sources[index]), default=0
        )
    assert len(regions) <= max(changes) + 2
    assert len(regions) >= max(changes) + 1


def test_a_small_region_joins_its_neighbours() -> None:
    nodes = [node("Relu", "x", "a"), node("NonZero", "a", "b"), node("Relu", "a", "c"), node("Add", "c c", "d")]
    graph = cut_models.model(nodes, {"x": (T.FLOAT, [4])}, {"d": T.FLOAT, "b": T.INT64}, {}).graph
    large, small = ValueType("tensor(float)", (2000, 2000)), ValueType("tensor(float)", (4,))
    types = {"x": large, "a": large, "b": ValueType("tensor(int64)", (1, 4)), "c": small, "d": small}
    assert cut(graph, {1}, types) == [Region(True, (0, 2, 3)), Region(False, (1,))]
    assert cut(graph, {1, 2}, types) == [Region(True, (0,)), Region(False, (1, 2, 3))]


def test_a_simplification_that_changes_the_result_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime merges a padding by zeros into a pooling that pads by minus infinity, unless it is kept from it."""
    monkeypatch.setattr(onnx_run, "_WRONG_FUSIONS", [])
    nodes = [node("Neg", "x", "n"), node("Abs", "n", "a"), node("Neg", "a", "negative")]
    nodes += [node("Pad", "negative pads", "p"), node("MaxPool", "p", "y", kernel_shape=[3, 3])]
    made = cut_models.model(nodes, IMAGE, {"y": T.FLOAT}, {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])})
    onnx.save(made, tmp_path / "model.onnx")
    np.savez(tmp_path / "given.npz")
    onnx_clean.prepare(str(tmp_path / "model.onnx"), str(tmp_path), {}, {}, str(tmp_path / "given.npz"))
    merged = tmp_path / "merged.onnx"
    onnx_run.session(tmp_path / "fixed.onnx", save_to=merged)
    assert [n.op_type for n in onnx.load(merged).graph.node][-1] == "MaxPool"
    assert "Pad" not in [n.op_type for n in onnx.load(merged).graph.node], "ONNX Runtime has mended it: find another"
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    results = []
    for name in ("fixed.onnx", "clean.onnx"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        results.append(onnxruntime.InferenceSession(str(tmp_path / name), options).run(None, {"x": x})[0])
    np.testing.assert_array_equal(*results)
