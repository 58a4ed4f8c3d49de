"""What several test files share: one small compiled model, small ONNX files to break, and which tests run when."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from filelock import FileLock
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.machine import speed
from slipstream.tvm_bridge.imports import import_tvm_without_torch
from tests.postgres import Server, server_programs

# Half the time of an import; and TVM's script parser looks through all modules, of which PyTorch has thousands.
import_tvm_without_torch()

Build = Callable[[Path], object]

# The files that take longest, longest first: begun early, so that no worker has one left when the others are through.
LONGEST = (
    "session/test_loop.py",
    "measure/test_rpc.py",
    "session/test_tune.py",
    "cli/test_tune.py",
    "measure/test_chaos.py",
    "test_plugins.py",
    "frontends/test_onnx_models.py",
    "report/test_browser.py",
    "cli/test_commands.py",
    "graph/test_winograd.py",
    "program/test_space.py",
    "session/test_in_flight.py",
    "report/test_view.py",
    "testing/test_own.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the tests marked `timing` last: nobody has to wait long for others to be through."""
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    timing = [item.get_closest_marker("timing") is not None for item in items]
    order = sorted(range(len(items)), key=lambda n: (timing[n], place.get(items[n].path, len(place))))
    for item, alone in zip(items, timing, strict=True):
        if alone:
            item.add_marker(pytest.mark.xdist_group("timing"))
    items[:] = [items[n] for n in order]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file is run by one worker, and so are all tests marked `timing`."""
    from xdist.scheduler import LoadGroupScheduling

    class ByFileOrGroup(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).split("::")[0]

    return ByFileOrGroup(config, log)


def _run_directory(factory: pytest.TempPathFactory) -> Path:
    """The temporary directory of this run, the same for all of pytest-xdist's workers."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test marked `timing` runs while no other worker runs any; workers queue, so that it gets its turn."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    directory = _run_directory(item.config._tmp_path_factory)  # type: ignore[attr-defined]
    kind = fcntl.LOCK_EX if item.get_closest_marker("timing") is not None else fcntl.LOCK_SH
    with (directory / "queue").open("a") as queue, (directory / "turn").open("a") as turn:
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(turn, kind)
        fcntl.flock(queue, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(turn, fcntl.LOCK_UN)  # closing would leave it locked by children that were forked meanwhile


@pytest.fixture(scope="session", autouse=True)
def speed_measured_once() -> Iterator[None]:
    """Every session asks how fast this machine is: a second of two cores' time, here only for the first of a worker."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("measure_peak_flops", "measure_bandwidth"):
            patch.setattr(speed, name, cache(getattr(speed, name)))
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Build], Path]:
    """`made_once(name, build)`: the directory that `build` makes, made by the first worker that asks for it."""
    root = _run_directory(tmp_path_factory)

    def made(name: str, build: Build) -> Path:
        path = root / "made-once" / name
        path.parent.mkdir(exist_ok=True)
        with FileLock(path.with_name(f"{name}.lock")):
            if not path.exists():
                build(path)
        return path

    return made


@pytest.fixture(scope="session")
def tiny_artifact(made_once: Callable[[str, Build], Path]) -> Path:
    """`zoo:tiny_cnn`, compiled once for the whole run. Do not change it: copy it."""
    return made_once("tiny", lambda path: slipstream.compile("zoo:tiny_cnn", path))


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


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One for all tests that are marked `xdist_group("postgres")`, which one worker runs."""
    programs = server_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian's package is postgresql)")
    server = Server(programs)
    yield server
    server.remove()


@pytest.fixture
def postgres(postgres_server: Server) -> Iterator[Server]:
    """A running PostgreSQL server; what a test makes in it is gone after the test."""
    yield postgres_server
    postgres_server.empty_databases()


@pytest.fixture
def ordinary_signals() -> Iterator[None]:
    """SIGINT and SIGHUP as in a terminal, here and in processes that are started: nohup and `&` have them ignored."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
