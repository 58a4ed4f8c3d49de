"""What several test files share: one small compiled model and small ONNX files to break."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import slipstream


@pytest.fixture(scope="session")
def tiny_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`zoo:tiny_cnn`, compiled once for the whole run. Do not change it: copy it."""
    directory = tmp_path_factory.mktemp("artifacts") / "tiny"
    slipstream.compile("zoo:tiny_cnn", directory)
    return directory


def small_model(
    *, batch: int | str = "batch", width: int | str = 8, op: str = "Relu", domain: str = ""
) -> onnx.ModelProto:
    """A 1x1 convolution and one more operator, a few hundred bytes."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((4, 3, 1, 1)).astype(np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
            helper.make_node(op, ["c"], ["y"], domain=domain),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 8, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def embedding_model() -> onnx.ModelProto:
    """A table of 11 rows and five indices into it."""
    table = numpy_helper.from_array(np.arange(22, dtype=np.float32).reshape(11, 2), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "embedding",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 2])],
        [table],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def ordinary_signals() -> Iterator[None]:
    """SIGINT and SIGHUP as in a terminal, here and in processes that are started: nohup and `&` have them ignored."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
