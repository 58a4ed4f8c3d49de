"""Good programs among ones that crash, hang, eat memory and lie: each gets what it deserves, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from slipstream.machine.target import resolve_target
from slipstream.measure import Candidate, Engine, MeasureConfig, Settling, cpu_measurer, reference_text
from slipstream.measure.reference import State
from slipstream.processes.fork_server import ForkServer
from tests.measure import misbehaving

CONFIG = MeasureConfig(run_seconds=2.0, memory_bytes=512 << 20)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that is both the working and the temporary one: nothing may be left in it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_program_gets_its_verdict_in_any_order(places: Path) -> None:
    bad = [misbehaving.program(func, label) for label, (func, _) in misbehaving.BAD.items()]
    good = [misbehaving.program(make(), label) for label, make in misbehaving.GOOD.items()]
    programs = [*bad, *good, misbehaving.program(misbehaving.prints, "prints")]
    np.random.default_rng(0).shuffle(programs)  # type: ignore[arg-type]
    with _measurer() as measurer:
        server = psutil.Process(measurer.server.pid)
        results = {m.program.label: m for m in measurer.measure(programs)}
        assert len(results) == len(programs)
    for label, measurement in results.items():
        if label in misbehaving.BAD:
            assert measurement.failure is not None, label
            assert measurement.failure.kind in misbehaving.BAD[label][1], (label, measurement.failure)
        else:
            assert measurement.failure is None, (label, measurement.failure)
            assert measurement.verified
            assert 0 < measurement.interval.low <= measurement.median <= measurement.interval.high
    abort = results["abort"].failure
    assert abort is not None
    assert "SIGABRT" in abort.message
    assert "last words" in abort.stderr
    assert not server.is_running()
    assert _descendants() == []
    assert list(places.iterdir()) == []


OWNER = """
    import sys, time
    sys.path.insert(0, {root!r})
    from slipstream.tvm_bridge.imports import import_tvm_without_torch
    import_tvm_without_torch()
    import slipstream.measure as measure
    from slipstream.machine.target import resolve_target
    from tests.measure import misbehaving as m

    references = {{m.KEY: measure.reference_text(m.good(1))}}
    good = [m.program(m.good(step), "good") for step in (1, 2)]
    endless = [m.program(m.endless_loop, "loop")]
    with measure.cpu_measurer(resolve_target(), references, measure.MeasureConfig(run_seconds=600.0)) as measurer:
        print(measurer.server.pid, flush=True)
        for programs in (good, endless):
            for measurement in measurer.measure(programs):
                print(measurement.program.label, flush=True)
"""


@pytest.mark.usefixtures("ordinary_signals")
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_after_ctrl_c_or_kill(blow: signal.Signals, places: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER.format(root=str(ROOT)))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    server = psutil.Process(int(owner.stdout.readline()))
    assert [owner.stdout.readline().strip() for _ in range(2)] == ["good", "good"]
    time.sleep(0.5)  # now the endless loop is running
    family = [server, *server.children(recursive=True)]
    assert len(family) >= 2
    owner.send_signal(blow)
    owner.communicate(timeout=20)
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert len(gone) == len(family)
    assert list(places.iterdir()) == []


@pytest.fixture(scope="module")
def measurer() -> Iterator[Engine]:
    """One for all tests that kill its server: it has to go on after each of them."""
    with _measurer() as measurer:
        yield measurer


def _programs(operator: str, *steps: int) -> list[Candidate]:
    return [replace(misbehaving.program(misbehaving.good(step), str(step)), operator=operator) for step in steps]


def test_a_killed_server_is_replaced_and_its_programs_tried_again(measurer: Engine) -> None:
    programs = [misbehaving.program(make(), label) for label, make in misbehaving.GOOD.items()]
    stream = measurer.measure(programs)
    results = [next(stream)]
    os.kill(measurer.server.pid, signal.SIGKILL)
    results += stream
    assert sorted(m.program.label for m in results) == sorted(misbehaving.GOOD)
    assert all(m.failure is None for m in results)


def test_a_reference_that_was_being_computed_when_the_server_was_killed_is_computed_again(measurer: Engine) -> None:
    """Killed for certain while it is computed: it is asked for, and nothing has read its answer yet."""
    reference = measurer._references.ask("first", measurer.server)
    assert reference.state is State.ASKED
    os.kill(measurer.server.pid, signal.SIGKILL)
    results = list(measurer.measure(_programs("first", 2, 4, 8)))
    assert [(m.failure, m.verified) for m in results] == [(None, True)] * 3
    assert reference.state is State.READY


def test_a_server_killed_while_the_end_of_a_reference_is_awaited_costs_no_program(
    measurer: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that computes it has ended; that its server has too turns out when its end is asked for."""
    kills = 1
    end_of = ForkServer.end_of

    def kill_first(server: ForkServer, worker: Any, patience: float = 5.0) -> Any:
        nonlocal kills
        if kills:
            kills -= 1
            os.kill(server.pid, signal.SIGKILL)
            server._process.wait()
        return end_of(server, worker, patience)

    monkeypatch.setattr(ForkServer, "end_of", kill_first)
    reference = measurer._references.ask("second", measurer.server)
    assert reference.worker is not None
    measurer.server._kill(reference.worker)
    results = list(measurer.measure(_programs("second", 2, 4)))
    assert kills == 0
    assert [m.failure for m in results] == [None] * 2


@pytest.mark.parametrize(("kills", "rounds"), [(1, True), (9, False)])
def test_settling_outlives_its_server_or_settles_for_what_is_known(measurer: Engine, kills: int, rounds: bool) -> None:
    results = list(measurer.measure(_programs("third" if rounds else "fourth", 1, 2)))
    settling = Settling(near=1e9, least_rounds=3, most_rounds=3)
    settled = measurer.settle(results, _KillsTheServer(measurer, kills), settling)
    assert settled is not None
    assert len(settled.finalists) == 2
    if rounds:
        assert all(len(m.samples) == 3 for m in settled.finalists)
    else:
        assert not settled.decided
        assert settled.winner == min(results, key=lambda m: m.median)


def _measurer() -> Engine:
    operators = (misbehaving.KEY, "first", "second", "third", "fourth")
    return cpu_measurer(resolve_target(), dict.fromkeys(operators, reference_text(misbehaving.good(1))), CONFIG)


def _descendants() -> list[psutil.Process]:
    ours = psutil.Process().children(recursive=True)
    return [p for p in ours if "slipstream.measure" in " ".join(p.cmdline())]


class _KillsTheServer(np.random.Generator):
    """Randomness that costs the server its life, the first `kills` times it is asked for."""

    def __init__(self, measurer: Engine, kills: int) -> None:
        super().__init__(np.random.PCG64(0))
        self._measurer, self._kills = measurer, kills

    def permutation(self, x: Any, axis: int = 0) -> Any:
        if self._kills > 0:
            self._kills -= 1
            server = self._measurer.server
            os.kill(server.pid, signal.SIGKILL)
            server._process.wait()
        return super().permutation(x, axis)
