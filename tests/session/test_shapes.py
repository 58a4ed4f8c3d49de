"""Several shapes in one session: one set of operators, one store, one artifact, figures for each shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.cli import main
from slipstream.report.page import report_page
from slipstream.report.view import session_structure
from slipstream.session.directory import SessionDirectory
from slipstream.session.shapes import counterparts, importance
from slipstream.session.state_names import FAMILIES
from slipstream.session.stored_history import StoredHistory
from slipstream.store import Store
from tests.session.synthetic import SyntheticMeasurer

LABELS = ("2x8", "4x8")


def two_layers() -> onnx.ModelProto:
    """Two products, and a softmax of a table that has the same shape for every batch."""
    rng = np.random.default_rng(0)
    weights = {"a": (8, 32), "b": (32, 16)}
    initializers = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
        helper.make_node("Softmax", ["table"], ["shares"], axis=-1),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8]),
        helper.make_tensor_value_info("table", TensorProto.FLOAT, [4, 16]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "shares")]
    graph = helper.make_graph(nodes, "two_layers", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, slipstream.TuningResult]:
    folder = tmp_path_factory.mktemp("shapes")
    onnx.save(two_layers(), folder / "two_layers.onnx")
    result = slipstream.tune(
        str(folder / "two_layers.onnx"),
        folder / "session",
        trials=12,
        effort="quick",
        shapes={"x": "2,4x8"},
        pad=True,
        measurer=lambda context: SyntheticMeasurer(),
    )
    return folder, result


def stored(folder: Path) -> StoredHistory:
    directory = SessionDirectory.read(folder / "session")
    with Store.open(directory.store, read_only=True) as store:
        return StoredHistory.of(store, directory.session)


def test_operators_that_shapes_have_in_common_are_one_and_others_are_a_family(tuned: Any) -> None:
    operators = stored(tuned[0]).history.operators
    common = [o for o in operators.values() if o.weight == 2]
    assert [o.kinds[0] for o in common] == ["softmax"] or "softmax" in common[0].name
    assert len(operators) % 2 == len(common) == 1
    families = [set(family["similarity"]) for family in stored(tuned[0]).saved[FAMILIES]]
    calls = tuned[1].snapshot.calls
    small, large = (set(calls[label]) - {common[0].key} for label in LABELS)
    assert any(family & small and family & large for family in families)


def test_sums_of_the_shapes_are_those_of_the_session(tuned: Any) -> None:
    result = tuned[1]
    assert tuple(row.shape for row in result.shapes) == LABELS
    assert sum(row.latency for row in result.shapes) == pytest.approx(result.latency)
    assert sum(row.start for row in result.shapes) == pytest.approx(result.start_latency)
    assert sum(row.end_to_end for row in result.shapes) == pytest.approx(result.end_to_end)


def test_status_and_report_show_each_shape(tuned: Any) -> None:
    folder, result = tuned
    said = CliRunner().invoke(main, ["status", str(folder / "session")]).output
    assert all(label in said for label in LABELS)
    status = json.loads(CliRunner().invoke(main, ["status", "--json", str(folder / "session")]).output)
    structure = session_structure(folder / "session")
    for rows in (status["shapes"], structure["shapes"]):
        assert [row["latency"] for row in rows] == pytest.approx([row.latency for row in result.shapes])
    assert [row["end_to_end"] for row in structure["shapes"]] == [row.end_to_end for row in result.shapes]
    assert all(f"{label}" in report_page(structure) for label in LABELS)
    assert structure["command"].count("x=2x8") + structure["command"].count("4, 8]") == 1


def test_it_goes_on_with_all_shapes(tuned: Any) -> None:
    folder, result = tuned
    again = slipstream.resume(folder / "session", trials=4, measurer=lambda context: SyntheticMeasurer())
    assert again.trials > result.trials
    model = slipstream.load(folder / "session")
    table, rng = np.zeros((4, 16), np.float32), np.random.default_rng(1)
    a, b = (numpy_helper.to_array(tensor) for tensor in two_layers().graph.initializer)
    for batch in (1, 2, 3, 4):
        x = rng.standard_normal((batch, 8)).astype(np.float32)
        np.testing.assert_allclose(model(x, table)["y"], np.maximum(x @ a, 0) @ b, rtol=1e-4, atol=1e-4)


def test_operators_of_the_shapes_correspond_one_to_one_or_not_at_all() -> None:
    kinds = {"a1": ("conv2d",), "a4": ("conv2d",), "b1": ("matmul",), "b4": ("matmul",), "same": ("softmax",)}
    calls = {"1": {"a1": 2, "b1": 1, "same": 1}, "4": {"a4": 2, "b4": 1, "same": 1}}
    found = counterparts(calls, kinds)
    assert found == {"a1": {"a4"}, "a4": {"a1"}, "b1": {"b4"}, "b4": {"b1"}, "same": set()}
    assert counterparts({"1": {"a1": 1}, "4": {"b4": 1}}, kinds) == {}
    assert counterparts({"1": {"a1": 1}, "4": {"a4": 1, "b4": 1}}, kinds) == {}
    assert counterparts({}, kinds) == {}


def test_shapes_count_alike_whatever_their_size() -> None:
    flops = {"small": 10, "large": 40, "same": 20}
    calls = {"1": {"small": 4, "same": 1}, "4": {"large": 4, "same": 1}}  # 60 and 180 operations
    found = importance(calls, flops)
    assert found == pytest.approx({"small": 120 / 60, "large": 120 / 180, "same": (120 / 60 + 120 / 180) / 2})
    assert importance({"1": {"small": 1}}, flops) == importance({}, flops) == {}
    assert importance({"1": {"small": 1}, "2": {"unknown": 1}}, flops) == {}


def test_what_one_shape_has_found_takes_the_others_half_a_slot(tmp_path: Path) -> None:
    onnx.save(two_layers(), tmp_path / "two_layers.onnx")
    slipstream.tune(
        str(tmp_path / "two_layers.onnx"),
        tmp_path / "session",
        trials=40,
        effort="quick",
        scheduler="round_robin",
        shapes={"x": "2,4x8"},
        settings={"without": ["short_firsts"]},  # these are shorter still
        measurer=lambda context: SyntheticMeasurer(),
    )
    slots = [slot for slot in stored(tmp_path).history.slots.values() if not slot.default]
    sizes = {slot.operator: [len(s.trials) for s in slots if s.operator == slot.operator] for slot in slots}
    assert {of[0] for of in sizes.values()} == {6, 3}
