"""Measuring through a real tracker and real servers on loopback, some of which die, stall or run bad programs."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
import tvm
from tvm import te
from tvm.script.parser import parse

import slipstream
from slipstream.machine.target import resolve_target
from slipstream.measure import (
    Engine,
    MeasureConfig,
    Racing,
    RemoteConfig,
    Settled,
    Settling,
    reference_text,
    rpc_measurer,
)
from slipstream.measure.devices import rpc
from slipstream.measure.devices.rpc_session import RemoteLauncher
from slipstream.measure.devices.rpc_tracker import DeviceError, Tracker
from slipstream.measure.types import Candidate, FailureKind, Measurement, Measurer
from slipstream.processes.channel import Channel
from slipstream.session import winners
from tests.conftest import small_model
from tests.measure import misbehaving
from tests.measure.misbehaving import KEY
from tests.measure.test_cpu import MATMUL, scheduled_matmul, spoil_reference, unscheduled_matmul

HOST = "127.0.0.1"
QUICK = MeasureConfig(
    run_seconds=2.0,
    workers=2,
    racing=Racing(sample_seconds=0.001),
    remote=RemoteConfig(device_seconds=5.0, patience_seconds=1.0),
)
needs_tracker = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("tornado", "cloudpickle")),
    reason="TVM's tracker and server need tornado and cloudpickle: pip install 'apache-tvm[rpc]'",
)


def program(effect: str = "", number: int = 0, operator: str = "add") -> Candidate:
    """Adds 1 to 64 values; every `number` gives other code, `effect` is a C function it calls on the way."""
    call = f"T.evaluate(T.call_extern('int32', {effect}))" if effect else "pass"
    if effect == "error":
        call = "assert A[0] > T.float32(1000), 'no such luck'"
    source = f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    T.func_attr({{"global_symbol": "main"}})
    for i in range(64):
        with T.sblock("add"):
            v = T.axis.spatial(64, i)
            B[v] = A[v] + T.float32(1)
    T.evaluate(T.call_extern('int32', 'abs', {number}))
    {call}
"""
    module = tvm.IRModule({"main": parse(source)})
    return Candidate(operator, tvm.ir.save_json(module), effect or f"add {number}")


def references() -> dict[str, str]:
    doubled = reference_text(misbehaving.good(1))
    add = dict.fromkeys(("add", "race"), program().module)
    return {**add, KEY: doubled, "doubted": doubled, MATMUL: reference_text(unscheduled_matmul()), "weights": WEIGHTS}


def add_weights() -> str:
    """An operator with 1 MB of weights."""
    a, b = (te.placeholder((512, 512), name=name) for name in "ab")
    c = te.compute((512, 512), lambda i, j: a[i, j] + b[i, j], name="c")
    func = te.create_prim_func([a, b, c])
    return reference_text(func.with_attrs({"global_symbol": "main", "layout_free_buffers": [1]}))


WEIGHTS = add_weights()


def slow(number: int) -> Candidate:
    """Takes 50 ms a run, 0.2 s with its samples."""
    return program("'usleep', 50000", number)


SEGFAULT = program("'raise', 11")
ENDLESS = program("'sleep', 1000")


@dataclass
class Farm:
    """A tracker and the servers registered with it, all started and ended here."""

    port: int
    log: Path
    environment: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def temporary(self, name: str) -> None:
        """Have what is started from now on keep its files in a directory of this name."""
        directory = self.log.parent / name
        directory.mkdir()
        self.environment["TMPDIR"] = str(directory)

    def serve(self, module: str, key: str, count: int) -> list[subprocess.Popen[bytes]]:
        tracker = f"{HOST}:{self.port}"
        started = []
        for _ in range(count):
            port = free_port()
            options = ["--host", HOST, "--port", str(port), "--tracker", tracker, "--key", key]
            # TVM's looks for a free port below this, which is 9199 if not given.
            stock_only = ["--port-end", str(port + 1)] if module.startswith("tvm.") else []
            started.append(self.start(module, *options, *stock_only))
        return started

    def servers(self, key: str) -> int:
        with Tracker(HOST, self.port) as tracker:
            return len(tracker.servers(key))

    def measurer(self, key: str, config: MeasureConfig = QUICK) -> Engine:
        return rpc_measurer(HOST, self.port, key, resolve_target("cpu"), references(), config)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(DeviceError):
            if condition():
                return
        time.sleep(0.1)
    raise AssertionError(f"not so after {seconds} s")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kinds(results: list[Measurement]) -> Counter[FailureKind | None]:
    return Counter(result.failure.kind if result.failure else None for result in results)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    directory = tmp_path_factory.mktemp("farm")
    # Servers import PyTorch where it is installed and start twice as fast where it is not.
    (directory / "torch.py").write_text("raise ImportError('not in this test')")
    path = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    threads = str(resolve_target("cpu").threads)
    environment = os.environ | {"PYTHONPATH": path, "TVM_NUM_THREADS": threads}
    farm = Farm(free_port(), directory / "log.txt", environment)
    farm.temporary("stock")
    try:
        farm.start("tvm.exec.rpc_tracker", "--host", HOST, "--port", str(farm.port), "--port-end", str(farm.port + 1))
        yield farm
    finally:
        for process in farm.processes:
            kill_group(process)


@pytest.fixture(scope="module")
def stock(farm: Farm) -> list[subprocess.Popen[bytes]]:
    """Two of TVM's own servers, under the key "stock"."""
    servers = farm.serve("tvm.exec.rpc_server", "stock", 2)
    wait_until(lambda: farm.servers("stock") == 2)
    return servers


@pytest.fixture(scope="module")
def ours(farm: Farm) -> list[subprocess.Popen[bytes]]:
    """Two of ours, under the key "ours"."""
    # A place of its own for files: a stock server that crashed leaves its behind.
    farm.temporary("ours")
    servers = farm.serve("slipstream.measure.rpc_server", "ours", 2)
    wait_until(lambda: farm.servers("ours") == 2)
    return servers


@pytest.fixture(scope="module")
def measurer(farm: Farm, ours: list[subprocess.Popen[bytes]]) -> Iterator[Engine]:
    with farm.measurer("ours") as measurer:
        yield measurer


@needs_tracker
@pytest.mark.slow
def test_one_of_two_stock_servers_is_killed_and_every_program_still_gets_its_time(
    farm: Farm, stock: list[subprocess.Popen[bytes]]
) -> None:
    programs = [slow(number) for number in range(7)]
    with farm.measurer("stock") as measurer:
        stream = measurer.measure(programs)
        results = [next(stream) for _ in range(3)]
        kill_group(stock[0])
        results += list(stream)
    assert Counter(m.program for m in results) == Counter(programs)
    assert kinds(results) == {None: 7}
    assert all(m.samples and 0.05 <= m.median < 0.2 for m in results)
    assert all(m.build_seconds > 0 and m.run_seconds >= 0.2 for m in results)
    wait_until(lambda: farm.servers("stock") == 1)


@needs_tracker
@pytest.mark.slow
def test_a_crash_is_the_end_of_a_stock_server(farm: Farm, stock: list[subprocess.Popen[bytes]]) -> None:
    kill_group(stock[0])
    one = replace(QUICK, remote=replace(QUICK.remote, devices=1))
    with farm.measurer("stock", one) as measurer:
        (result,) = measurer.measure([SEGFAULT])
    # Why there is a server of ours: nobody is left to try it a second time.
    assert kinds([result]) == {FailureKind.DEVICE_LOST: 1}
    assert result.failure is not None
    assert "the connection broke" in result.failure.message
    assert farm.servers("stock") == 0


@needs_tracker
def test_bad_programs_fail_by_kind_and_good_ones_are_measured(farm: Farm, measurer: Measurer) -> None:
    good = [program(number=number) for number in range(6)]
    bad = [SEGFAULT, ENDLESS, Candidate("add", "not a module"), program("error")]
    programs = [good[0], bad[0], good[1], good[2], bad[1], good[3], bad[2], good[4], bad[3], good[5]]
    results = {m.program: m for m in measurer.measure(programs)}
    assert len(results) == len(programs)
    assert all(results[p].failure is None and min(results[p].samples) > 0 for p in good)
    failures = [results[p].failure for p in bad]
    assert [failure.kind if failure else None for failure in failures] == [
        FailureKind.CRASH,
        FailureKind.RUN_TIMEOUT,
        FailureKind.BUILD_ERROR,
        FailureKind.RUN_ERROR,
    ]
    assert failures[0] is not None
    assert failures[0].message.count("the connection broke on 127.0.0.1:") == 2
    assert results[ENDLESS].run_seconds >= 2 * QUICK.run_seconds
    assert farm.servers("ours") == 2


@needs_tracker
def test_a_stalled_server_has_its_program_tried_elsewhere(
    measurer: Measurer, ours: list[subprocess.Popen[bytes]]
) -> None:
    programs = [slow(number) for number in range(100, 108)]
    stream = measurer.measure(programs)
    results = [next(stream)]
    stalled = [ours[0].pid, *(child.pid for child in psutil.Process(ours[0].pid).children(recursive=True))]
    for pid in stalled:
        os.kill(pid, signal.SIGSTOP)
    try:
        results += list(stream)
    finally:
        for pid in stalled:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert Counter(m.program for m in results) == Counter(programs)
    assert kinds(results) == {None: 8}


@needs_tracker
def test_programs_are_taken_only_as_fast_as_they_are_measured(measurer: Measurer) -> None:
    taken = 0

    def endless() -> Iterator[Candidate]:
        nonlocal taken
        while taken < 1000:
            taken += 1
            yield program(number=1000 + taken)

    stream = measurer.measure(endless())
    for received in range(1, 6):
        assert next(stream).failure is None
        assert taken - received <= 2 + 2 * 2 + 2
    # Leaving early is fine, and the next round starts clean.
    stream.close()  # type: ignore[attr-defined]
    assert kinds(list(measurer.measure([program(number=7)]))) == {None: 1}


@needs_tracker
def test_the_same_program_is_run_once(measurer: Measurer) -> None:
    first, other = program(number=55), program(number=56)
    same = Candidate(first.operator, first.module, "again")
    results = {m.program: m for m in measurer.measure([first, same, other])}
    assert results[same].samples == results[first].samples != results[other].samples
    assert [results[p].duplicate for p in (first, same, other)] == [False, True, False]


@needs_tracker
def test_a_wrong_program_never_wins(measurer: Engine) -> None:
    wrong = ("wrong result", "forgets an element", "overwrites input")
    programs = [
        *(misbehaving.program(misbehaving.BAD[label][0], label) for label in wrong),
        *(misbehaving.program(misbehaving.good(step), f"good {step}") for step in (8, 32)),
        *(scheduled_matmul(tile, prepack=True) for tile in (16, 32)),
    ]
    results = {m.program.label: m for m in measurer.measure(programs)}
    # Before a program was called wrong, the unscheduled function computed the reference.
    assert measurer._references[KEY].plain
    for label, result in results.items():
        if label in wrong:
            assert result.failure is not None
            assert result.failure.kind is FailureKind.WRONG_RESULT, (label, result.failure)
        else:
            assert result.failure is None, (label, result.failure)
            assert result.verified
    assert measurer.best[KEY].program.label in ("good 8", "good 32")
    assert measurer.best[MATMUL].median == min(results[f"tile {tile}"].median for tile in (16, 32))


@needs_tracker
def test_a_doubtful_reference_is_computed_again(measurer: Engine) -> None:
    programs = [replace(misbehaving.program(misbehaving.good(step), ""), operator="doubted") for step in (2, 4)]
    (first,) = measurer.measure(programs[:1])
    spoil_reference(measurer, "doubted")
    (second,) = measurer.measure(programs[1:])
    assert (first.failure, second.failure) == (None, None)
    assert second.verified


@needs_tracker
def test_finalists_are_sampled_in_turn_on_one_device(measurer: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    send = rpc._Held.send

    def listen(held: rpc._Held, request: dict[str, Any]) -> None:
        asked.extend((held.address, options["library"]) for job, options in request.items() if job == "sample")
        send(held, request)

    monkeypatch.setattr(rpc._Held, "send", listen)
    results = list(measurer.measure([scheduled_matmul(tile, prepack=True) for tile in (2, 8, 64)]))
    settling = Settling(near=1e9, least_rounds=4, most_rounds=6)
    settled = measurer.settle(results, np.random.default_rng(0), settling)
    assert settled is not None
    assert measurer.best[MATMUL] == settled.winner
    # The reference kernel was timed on the devices.
    assert measurer.devices.drifts
    assert all(drift.usual > 0 for drift in measurer.devices.drifts.values())
    assert len(settled.finalists) == 3
    assert all(len(m.samples) >= 4 for m in settled.finalists)
    assert settled.winner.median == min(m.median for m in settled.finalists)
    assert len({address for address, _ in asked}) == 1
    assert len({library for _, library in asked[:3]}) == 3


@needs_tracker
def test_a_device_that_is_lost_while_finalists_are_compared_is_replaced(
    measurer: Engine, ours: list[subprocess.Popen[bytes]]
) -> None:
    class EndsTheSession(np.random.Generator):
        """Randomness that ends the sessions of all servers the first time it is asked for."""

        done = False

        def permutation(self, x: Any, axis: int = 0) -> Any:
            if not self.done:
                self.done = True
                for child in [child for server in ours for child in psutil.Process(server.pid).children()]:
                    child.kill()
            return super().permutation(x, axis)

    results = list(measurer.measure([scheduled_matmul(tile, prepack=False) for tile in (8, 64)]))
    settling = Settling(near=1e9, least_rounds=3, most_rounds=3)
    settled = measurer.settle(results, EndsTheSession(np.random.PCG64(0)), settling)
    assert settled is not None
    assert [len(m.samples) for m in settled.finalists] == [3, 3]


@needs_tracker
def test_runs_take_copies_of_large_weights_in_turn(farm: Farm, measurer: Engine) -> None:
    (result,) = measurer.measure([Candidate("weights", WEIGHTS, "add")])
    assert result.failure is None
    assert result.verified
    # The same from here, where the copies can be seen.
    remote = tvm.rpc.connect_tracker(HOST, farm.port).request("ours", session_timeout=60)
    launcher = RemoteLauncher(remote, Channel(socket.socketpair()[0]))
    weights = np.arange(512 * 512, dtype=np.float32).reshape(512, 512)
    tensors = [tvm.runtime.tensor(weights, remote.cpu()) for _ in range(3)]
    copies = launcher._copy_weights(tensors, [1], model_weights=0)
    assert len(copies) == 32  # 32 MB of 1 MB each
    assert all(np.array_equal(copy.numpy(), weights) for (copy,) in copies[:2])
    launcher.clear()


@needs_tracker
def test_a_busy_device_is_noticed(measurer: Engine) -> None:
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * len(os.sched_getaffinity(0)))
    ]
    try:
        time.sleep(1)  # until they run
        # Programs that compute: one that sleeps is given a core as soon as it wakes up.
        results = list(measurer.measure([scheduled_matmul(tile, prepack=False) for tile in (8, 16, 32)]))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert kinds(results) == {None: 3}
    assert any(m.noisy for m in results)


@needs_tracker
def test_a_session_on_two_servers_compares_the_fastest_at_its_end(
    farm: Farm, ours: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Settled | None] = []
    settle = Engine.settle

    def listen(engine: Engine, *arguments: Any, **named: Any) -> Settled | None:
        compared.append(settle(engine, *arguments, **named))
        return compared[-1]

    monkeypatch.setattr(Engine, "settle", listen)
    monkeypatch.setattr(winners, "_NEAR", 100.0)  # whatever was measured races again
    onnx.save(small_model(batch=1), tmp_path / "small.onnx")
    where = f"{HOST}:{farm.port}"
    result = slipstream.tune(tmp_path / "small.onnx", tmp_path / "out", trials=10, rpc=where, rpc_key="ours")
    assert result.trials > 0
    assert compared
    raced = [s for s in compared if s is not None and len(s.finalists) >= 2]
    assert raced
    assert all(m.samples for s in raced for m in s.finalists)


@needs_tracker
def test_a_slow_program_is_given_up_early(measurer: Engine) -> None:
    (fast,) = measurer.measure([program("", 11, "race")])
    (slow_one,) = measurer.measure([program("'usleep', 50000", 12, "race")])
    assert not fast.stopped_early
    assert slow_one.stopped_early
    assert len(slow_one.samples) == 1
    assert measurer.best["race"] == fast


@needs_tracker
def test_a_device_is_shared_and_queueing_is_not_running(farm: Farm, ours: list[subprocess.Popen[bytes]]) -> None:
    settings = replace(QUICK, run_seconds=2.0, remote=RemoteConfig(device_seconds=2.0, idle_seconds=5.0))
    with farm.measurer("ours", settings) as holder:
        # Both servers are taken until the holder has been idle for a while.
        assert kinds(list(holder.measure([slow(20), slow(21)]))) == {None: 2}
        with farm.measurer("ours", settings) as queuer:
            started = time.monotonic()
            (result,) = queuer.measure([slow(22)])
            waited = time.monotonic() - started
    assert result.failure is None
    assert waited > settings.run_seconds + settings.remote.device_seconds
    assert result.run_seconds < settings.run_seconds


@needs_tracker
def test_without_a_server_every_program_is_told_so(farm: Farm) -> None:
    with farm.measurer("nobody") as measurer:
        results = list(measurer.measure([program(number=number) for number in range(6)]))
    assert kinds(results) == {FailureKind.DEVICE_LOST: 6}
    assert results[0].failure is not None
    assert "no server with key 'nobody' at the tracker" in results[0].failure.message


@needs_tracker
def test_nothing_is_left_after_closing(farm: Farm, ours: list[subprocess.Popen[bytes]]) -> None:
    before = set(psutil.Process().children(recursive=True))
    measurer = farm.measurer("ours")
    stream = measurer.measure([slow(number) for number in range(200, 204)])
    next(stream)
    started = set(psutil.Process().children(recursive=True)) - before
    assert len(started) >= 3
    stream.close()  # type: ignore[attr-defined]
    measurer.close()
    # A linker that was killed with its builder is reaped by whoever reaps orphans here, in its own time.
    wait_until(lambda: not [process for process in started if process.is_running()], 5.0)
    assert not measurer.server.scratch.exists()
    remote = farm.log.parent / "ours"
    wait_until(lambda: not list(remote.rglob("*.so")), 10.0)


@needs_tracker
def test_nothing_is_left_after_the_measuring_process_was_killed(
    farm: Farm, ours: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "endless.json").write_text(ENDLESS.module)
    (tmp_path / "reference.json").write_text(program().module)
    code = f"""
import sys
from pathlib import Path
from slipstream.tvm_bridge.imports import import_tvm_without_torch
import_tvm_without_torch()
from slipstream.measure import Candidate, rpc_measurer
from slipstream.machine.target import resolve_target
text, reference = (Path({str(tmp_path)!r}, name).read_text() for name in ("endless.json", "reference.json"))
measurer = rpc_measurer({HOST!r}, {farm.port}, "ours", resolve_target("cpu"), {{"add": reference}})
list(measurer.measure([Candidate("add", text)]))
"""
    environment = farm.environment | {"TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)
    try:
        wait_until(lambda: len(psutil.Process(parent.pid).children(recursive=True)) >= 4, 30.0)
        orphans = psutil.Process(parent.pid).children(recursive=True)
        scratch = [Path(word) for word in orphans[0].cmdline() if "/slipstream-" in word]
        assert scratch
    finally:
        kill_group(parent)
    wait_until(lambda: not [process for process in orphans if process.is_running()], 10.0)
    wait_until(lambda: not any(folder.exists() for folder in scratch), 10.0)
    # The endless program goes too, so that the device is free again.
    wait_until(lambda: all(len(psutil.Process(s.pid).children()) == 0 for s in ours), 10.0)
