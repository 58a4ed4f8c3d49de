"""A model as a library of its own: right from any memory and any thread, idle when idle, gone when closed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import slipstream
from slipstream.artifact.manifest import Manifest
from slipstream.errors import ArtifactError
from slipstream.frontends import zoo
from slipstream.frontends.inputs import random_inputs


def _inputs(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, 32, 32)).astype(np.float32)


def _workers() -> int:
    """Threads of the pool in this process. The kernel goes on listing one that was joined for a while."""
    return min(_listed() for _ in range(10) if time.sleep(0.02) is None)


def _listed() -> int:
    count = 0
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has ended meanwhile
            count += Path(f"/proc/self/task/{task}/comm").read_text().strip() == "slipstream"
    return count


def test_loading_and_running_needs_no_tvm(artifact: Path) -> None:
    code = (
        "import sys, numpy, slipstream\n"
        f"model = slipstream.load({str(artifact)!r})\n"
        "model(numpy.zeros((1, 3, 32, 32), 'float32'))\n"
        "assert not {'tvm', 'tvm_ffi', 'onnx', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_memory_of_any_alignment_and_order(artifact: Path) -> None:
    with slipstream.load(artifact) as model:
        image = _inputs()
        expected = model(image)[0]
        raw = np.empty(image.nbytes + 64, np.uint8)
        for shift in (1, 4, 16, 60):
            shifted = raw[shift : shift + image.nbytes].view(np.float32).reshape(image.shape)
            shifted[...] = image
            np.testing.assert_array_equal(model(shifted)[0], expected)
        np.testing.assert_array_equal(model(np.asfortranarray(image))[0], expected)
        torch = pytest.importorskip("torch")
        np.testing.assert_array_equal(np.from_dlpack(model(torch.from_numpy(image))[0]), expected)


def test_outputs_of_one_call_survive_the_next(artifact: Path) -> None:
    with slipstream.load(artifact) as model:
        first = model(_inputs(1))[0]
        copy = first.copy()
        model(_inputs(2))
        np.testing.assert_array_equal(first, copy)


def test_many_callers_at_once(artifact: Path) -> None:
    with slipstream.load(artifact) as model:
        expected = [model(_inputs(seed))[0] for seed in range(8)]
        with ThreadPoolExecutor(8) as callers:
            for _ in range(20):
                results = callers.map(lambda seed: model(_inputs(seed))[0], range(8))
                for result, right in zip(results, expected, strict=True):
                    np.testing.assert_array_equal(result, right)


def test_threads_end_with_the_last_model(artifact: Path) -> None:
    before = _workers()
    first, second = slipstream.load(artifact, threads=2), slipstream.load(artifact, threads=2)
    first(_inputs())
    second(_inputs())
    assert _workers() <= 1  # one pool for both
    first.close()
    second(_inputs())
    second.close()
    assert _workers() == before == 0
    with pytest.raises(ArtifactError, match="closed"):
        second(_inputs())


@pytest.mark.timing
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_caller_bound_to_a_core_does_not_bind_the_workers(artifact: Path) -> None:
    code = (
        "import os, sys, threading, numpy, slipstream\n"
        "from pathlib import Path\n"
        "core = min(os.sched_getaffinity(0))\n"
        f"model = slipstream.load({str(artifact)!r}, threads=2)\n"
        "def call():\n"
        "    os.sched_setaffinity(0, {core})\n"
        "    for _ in range(3):\n"
        "        model(numpy.zeros((1, 3, 32, 32), 'float32'))\n"
        "caller = threading.Thread(target=call)\n"
        "caller.start()\n"
        "caller.join()\n"
        "tasks = [int(task) for task in os.listdir('/proc/self/task')]\n"
        "(worker,) = [t for t in tasks if Path(f'/proc/self/task/{t}/comm').read_text() == 'slipstream\\n']\n"
        "print(core in os.sched_getaffinity(worker))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_no_processor_time_when_idle(artifact: Path) -> None:
    with slipstream.load(artifact) as model:
        for _ in range(50):
            model(_inputs())
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.4)
        assert time.process_time() - before < 0.02


def test_a_forked_child_can_run_the_model(artifact: Path) -> None:
    with slipstream.load(artifact) as model:
        expected = model(_inputs())[0]
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(model(_inputs())[0], expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        np.testing.assert_array_equal(model(_inputs())[0], expected)


def test_a_child_forked_while_others_call_gives_the_model_back(artifact: Path) -> None:
    code = (
        "import os, threading, time, numpy, slipstream\n"
        f"model, image = slipstream.load({str(artifact)!r}), numpy.zeros((1, 3, 32, 32), 'float32')\n"
        "def call():\n"
        "    while not done: model(image)\n"
        "done, threads = [], [threading.Thread(target=call) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for _ in range(10):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        model.close()\n"
        "        os._exit('weights.bin' in open('/proc/self/maps').read())\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "done.append(1)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_folder_named_as_seen_from_within(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(artifact)
    with slipstream.load(".") as model:
        assert model(_inputs())[0].shape == (1, 10)


def test_a_child_forked_while_others_call_can_run_the_model(artifact: Path) -> None:
    code = (
        "import os, sys, threading, numpy, slipstream\n"
        f"model, image = slipstream.load({str(artifact)!r}), numpy.zeros((1, 3, 32, 32), 'float32')\n"
        "def call():\n"
        "    while not done: model(image)\n"
        "done, threads = [], [threading.Thread(target=call) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for _ in range(30):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        model(image)\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "done.append(1)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_closing_while_others_call(artifact: Path) -> None:
    with slipstream.load(artifact) as model:
        expected = model(_inputs())[0]
    for _ in range(10):
        model = slipstream.load(artifact, threads=2)
        wrong: list[object] = []

        def call(model: slipstream.CompiledModel = model, wrong: list[object] = wrong) -> None:
            try:
                while True:
                    if not np.array_equal(model(_inputs())[0], expected):
                        wrong.append("another result")
            except ArtifactError as error:
                if "closed" not in str(error):
                    wrong.append(error)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        model.close()
        for thread in threads:
            thread.join()
        assert not wrong
    assert _workers() == 0


def test_hundreds_of_loads_leave_nothing(artifact: Path) -> None:
    def load_and_run() -> None:
        with slipstream.load(artifact) as model:
            model(_inputs())

    for _ in range(20):
        load_and_run()
    workers, files, memory = _workers(), len(os.listdir("/proc/self/fd")), _resident()
    for _ in range(200):
        load_and_run()
    assert _workers() == workers
    assert len(os.listdir("/proc/self/fd")) <= files  # others of this process may have been closed meanwhile
    assert _resident() < memory + (8 << 20)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_callers_that_come_and_go(artifact: Path) -> None:
    with slipstream.load(artifact) as model:
        expected = model(_inputs())[0]
        wrong: list[int] = []

        def call() -> None:
            if not np.array_equal(model(_inputs())[0], expected):
                wrong.append(1)

        for _ in range(20):
            threads = [threading.Thread(target=call) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not wrong


def _model_of(nodes: list[onnx.NodeProto], outputs: list[tuple[str, list[int]]]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "odd",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [helper.make_tensor("c", TensorProto.FLOAT, [2, 3], [1.0, 2, 3, 4, 5, 6])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_outputs_that_are_views_copies_or_constants(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Flatten", ["y"], ["flat"]),
        helper.make_node("Identity", ["y"], ["again"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["c"], ["constant"]),
        helper.make_node("Transpose", ["y"], ["turned"]),
    ]
    shapes = [
        ("y", [2, 3]),
        ("flat", [2, 3]),
        ("again", [2, 3]),
        ("same", [2, 3]),
        ("constant", [2, 3]),
        ("turned", [3, 2]),
    ]
    slipstream.compile(_model_of(nodes, shapes), tmp_path / "odd")
    assert Manifest.read(tmp_path / "odd").prefix
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    with slipstream.load(tmp_path / "odd") as model:
        out = model(x)
    y = np.maximum(x, 0)
    constant = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    for name, expected in {"y": y, "flat": y, "again": y, "same": x, "constant": constant, "turned": y.T}.items():
        np.testing.assert_array_equal(out[name], expected)


@pytest.mark.parametrize("name", ["tiny_cnn"])
def test_as_tvms_virtual_machine(name: str) -> None:
    from slipstream.artifact.runtime import TvmExecutor
    from slipstream.frontends import load_model
    from slipstream.graph.build import apply_programs, build, build_planned
    from slipstream.graph.prepare import prepare
    from slipstream.machine.target import resolve_target

    assert name in zoo.names()
    model, target = load_model(f"zoo:{name}"), resolve_target("cpu", 2)
    scheduled = apply_programs(prepare(model.module, target)[0], target)
    assert build_planned(scheduled, target).plan is not None
    built = build(scheduled, target)
    feeds = random_inputs(model.inputs, np.random.default_rng(0))
    assert TvmExecutor(built.executable, built.weights, model.inputs, model.outputs, 2)(feeds)[0].shape == (1, 10)
