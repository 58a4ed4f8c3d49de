"""Cores are shared: programs are timed on some, and what is built or searched for meanwhile stays on the others."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest

from slipstream.machine.target import resolve_target
from slipstream.measure import Engine, MeasureConfig, reference_text
from slipstream.measure.devices.base import Outcome
from slipstream.measure.devices.cores import Cores, divide, place, siblings_of
from slipstream.measure.devices.cpu import CpuDevice
from slipstream.measure.trial import Trial
from slipstream.processes.channel import Speaker
from slipstream.processes.forked import Forked
from tests.measure.test_cpu import MATMUL, scheduled_matmul, unscheduled_matmul
from tests.store.processes import python

HERE = frozenset(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(len(HERE) < 2, reason="one core has nothing beside it")


def alone(core: int) -> frozenset[int]:
    return frozenset({core})


def paired(core: int) -> frozenset[int]:
    """Core n and n + 8 are one physical core."""
    return frozenset({core % 8, core % 8 + 8})


@pytest.mark.parametrize(
    ("threads", "allowed", "siblings", "timing"),
    [
        (2, range(16), alone, {14, 15}),
        (16, range(16), alone, set(range(16))),
        (99, range(4), alone, set(range(4))),
        (2, range(16), paired, {6, 14, 7, 15}),
        (8, range(16), paired, set(range(16))),
        (1, (2, 5, 7), alone, {7}),
        (1, (3, 11, 4), paired, {4}),
    ],
)
def test_whole_physical_cores_time(threads: int, allowed: Collection[int], siblings, timing: set[int]) -> None:  # type: ignore[no-untyped-def]
    cores = divide(threads, allowed, siblings)
    assert cores.timing == timing
    assert cores.beside == set(allowed) - timing


def test_a_core_is_one_of_its_siblings() -> None:
    assert all(core in siblings_of(core) for core in HERE)


def test_a_process_is_placed_with_its_threads_and_one_that_has_ended_is_ignored() -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        place(process.pid, {min(HERE)})
        threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
        assert len(threads) == 2
        assert [os.sched_getaffinity(thread) for thread in threads] == [{min(HERE)}] * 2
        process.kill()
    place(process.pid, HERE)


class Watched(CpuDevice):
    """Notes where each program ran, and what was built meanwhile and where; pretends that builders disturb."""

    def __init__(self, config: MeasureConfig, cores: Cores) -> None:
        super().__init__(config, cores)
        self.ran_on: list[set[int]] = []
        self.built_on: list[set[int]] = []
        self.slower = 1.0

    def collect(self, ready: Collection[Speaker]) -> Iterator[tuple[Trial, Outcome]]:
        for trial, outcome in super().collect(ready):
            if trial.worker is not None and trial.worker.pid:
                self.ran_on.append(os.sched_getaffinity(trial.worker.pid))
            workers = [one.worker for one in self._turn or () if one.paused_at is None]
            self.built_on += [os.sched_getaffinity(worker.pid) for worker in workers if worker and worker.pid]
            yield trial, outcome

    def sample(self, trial: Trial, number: int) -> float:
        builds = any(one.paused_at is None for one in self._turn or ())
        return super().sample(trial, number) * 0 + (self.slower if builds else 1.0)


@pytest.fixture(scope="module")
def measurer() -> Iterator[Engine]:
    config = MeasureConfig(workers=2, batch=2)
    target = replace(resolve_target(), threads=1)
    device = Watched(config, divide(1, HERE, alone))
    with Engine(target, {MATMUL: reference_text(unscheduled_matmul())}, device, config) as measurer:
        yield measurer


@needs_two_cores
def test_programs_are_built_beside_the_one_that_runs(measurer: Engine) -> None:
    device = measurer.devices
    assert isinstance(device, Watched)
    assert not device.is_alone
    programs = [scheduled_matmul(tile, prepack=prepack) for tile in (2, 4, 8, 16) for prepack in (True, False)]
    results = list(measurer.measure(programs))
    assert [m.failure for m in results] == [None] * len(programs)
    assert device.ran_on
    assert all(cores == device.cores.timing for cores in device.ran_on)
    assert device.built_on
    assert all(cores <= device.cores.beside for cores in device.built_on)
    assert os.sched_getaffinity(0) == os.sched_getaffinity(measurer.server.pid) == HERE


@needs_two_cores
def test_where_builders_disturb_programs_run_alone(measurer: Engine) -> None:
    device = measurer.devices
    assert isinstance(device, Watched)
    device._disturbances, device.slower = [0.2] * 4, 1.2
    programs = [scheduled_matmul(tile, prepack=False) for tile in (3, 5, 6, 7, 9)]
    assert all(m.failure is None for m in measurer.measure(programs))
    assert device._disturbances == pytest.approx([0.2] * 5)
    assert device.is_alone
    device.built_on.clear()
    list(measurer.measure([scheduled_matmul(tile, prepack=False) for tile in (15, 17)]))
    assert not device.built_on
    assert device.ran_on[-1] == HERE


def test_a_search_is_stopped_while_a_program_runs_alone(measurer: Engine) -> None:
    device = CpuDevice(MeasureConfig(), Cores(HERE))
    device.attach(measurer.server)
    search = Forked(lambda: time.sleep(60))
    try:
        with device.quiet([]):
            assert state_of(search._pid) == "T"
        assert state_of(search._pid) != "T"
    finally:
        search.cancel()


def state_of(process: int) -> str:
    """The state of a process, when it has had time to change."""
    time.sleep(0.1)
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


FORBIDDEN = {"x86_64": 203, "aarch64": 122}.get(platform.machine())


@pytest.mark.skipif(FORBIDDEN is None, reason="the number of the system call is not known")
def test_where_a_container_forbids_to_choose_cores_programs_are_measured_all_the_same() -> None:
    """The kernel refuses it to the process and to all that it starts, as a container's filter of system calls does."""
    script = """
        import ctypes, os, struct, sys

        ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # the second with EPERM
        code = [(0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (0x06, 0, 0, REFUSE), (0x06, 0, 0, ALLOW)]
        filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters)))
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.addressof(program), 0, 0):
            sys.exit("no filters here")
        try:
            os.sched_setaffinity(0, os.sched_getaffinity(0))
            sys.exit("not refused")
        except PermissionError:
            pass

        from dataclasses import replace

        from slipstream.machine.speed import measure_peak_flops
        from slipstream.machine.target import resolve_target
        from slipstream.measure import Engine, MeasureConfig, reference_text
        from slipstream.measure.devices.cores import divide
        from slipstream.measure.devices.cpu import CpuDevice
        from tests.measure.test_cpu import MATMUL, scheduled_matmul, unscheduled_matmul

        target, config = replace(resolve_target(), threads=1), MeasureConfig()
        assert measure_peak_flops(target, seconds=0.05) > 0
        device = CpuDevice(config, divide(1, os.sched_getaffinity(0)))
        with Engine(target, {MATMUL: reference_text(unscheduled_matmul())}, device, config) as engine:
            for measurement in engine.measure([scheduled_matmul(8, prepack=False)]):
                print(measurement.failure or "measured")
    """
    said, complaint = python(script, FORBIDDEN).communicate(timeout=120)
    if "no filters here" in complaint:
        pytest.skip("this kernel has no filters of system calls")
    assert said == "measured\n", complaint
