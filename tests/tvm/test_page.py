"""docs/tvm-users.md: its examples run, and its tables have what there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import slipstream.tvm

PAGE = (Path(__file__).parents[2] / "docs" / "tvm-users.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for the model."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 4, 3, 3)) / 6, "b": rng.standard_normal(16)}
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4), helper.make_node("Relu", ["c"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 14, 14])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 14, 14])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "model.onnx"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_block(number: int, names: dict[str, Any]) -> None:
    """Run an example of the page, with ten trials for its five minutes, and compare its model with ONNX Runtime."""
    text = BLOCKS[number].replace('max_trials_global=2000, budget="5m"', "max_trials_global=10")
    exec(text.replace('budget="5m"', "max_trials_global=10"), names)
    x = np.random.default_rng(1).standard_normal((1, 4, 14, 14)).astype(np.float32)
    found = relax.VirtualMachine(names["executable"], tvm.cpu())["main"](tvm.runtime.tensor(x))
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found.numpy(), session.run(None, {"x": x})[0], rtol=1e-3, atol=1e-4)


def test_the_changed_line(folder):
    names: dict[str, Any] = {}
    run_block(0, names)
    assert len(names["database"]) > 0


@pytest.mark.slow
def test_all_examples(folder):
    names: dict[str, Any] = {}
    for number in range(len(BLOCKS)):
        run_block(number, names)


def test_every_argument_and_name_is_on_the_page():
    for argument in inspect.signature(slipstream.tvm.tune_relax).parameters:
        assert f"`{argument}`" in PAGE, argument
    for name in slipstream.tvm.__all__:
        assert f"`{name}" in PAGE, name
