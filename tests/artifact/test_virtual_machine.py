"""Models that TVM's virtual machine runs on a CPU: those with operators of which no plan of calls can be made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.artifact.manifest import Manifest
from tests.conftest import Build


@pytest.fixture(scope="module")
def ranking(made_once: Callable[[str, Build], Path]) -> Path:
    """The three largest of each row, and a constant."""
    infos = [
        ("values", TensorProto.FLOAT, [2, 3]),
        ("places", TensorProto.INT64, [2, 3]),
        ("ones", TensorProto.FLOAT, [4]),
    ]
    graph = helper.make_graph(
        [helper.make_node("TopK", ["x", "k"], ["values", "places"]), helper.make_node("Identity", ["c"], ["ones"])],
        "ranking",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64])],
        [helper.make_tensor_value_info(*info) for info in infos],
        [numpy_helper.from_array(np.array([3]), "k"), numpy_helper.from_array(np.ones(4, np.float32), "c")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    artifact = made_once("ranking", lambda path: slipstream.compile(model, path, threads=2))
    assert not Manifest.read(artifact).prefix, "another model is needed: this one has a plan"
    return artifact


def test_an_output_that_is_a_constant_is_not_the_models_own_memory(ranking: Path) -> None:
    torch = pytest.importorskip("torch")
    with slipstream.load(ranking) as model:
        for _ in range(2):
            ones = torch.from_dlpack(model(torch.zeros(2, 64))["ones"])
            np.testing.assert_array_equal(ones, np.ones(4))
            ones.mul_(1000)


def test_forked_children_run_it_or_say_what_to_do(ranking: Path) -> None:
    code = (
        "import os, signal, threading, numpy, slipstream\n"
        f"path, image = {str(ranking)!r}, numpy.random.rand(2, 64).astype('float32')\n"
        "model = slipstream.load(path)\n"
        "expected = model(image)['places'].tolist()\n"
        "def in_child():\n"
        "    signal.alarm(30)\n"
        "    try:\n"
        "        return model(image)\n"
        "    except slipstream.errors.ArtifactError as error:\n"
        "        assert 'load it again' in str(error)\n"
        "        return slipstream.load(path)(image)\n"
        "def fork():\n"
        "    child = os.fork()\n"
        "    if child == 0: os._exit(in_child()['places'].tolist() != expected)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "fork()\n"
        "done = []\n"
        "def call():\n"
        "    while not done: model(image)\n"
        "threads = [threading.Thread(target=call) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "try:\n"
        "    for _ in range(5): fork()\n"
        "finally:\n"
        "    done.append(1)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
