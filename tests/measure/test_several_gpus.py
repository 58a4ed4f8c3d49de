"""Several GPUs at a time, with the CPU in place of each: who runs what, and what a loss costs the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T  # noqa: N812

from slipstream.errors import TargetError
from slipstream.machine.cuda import CudaDevice, equal_gpus, find_devices
from slipstream.machine.target import resolve_target
from slipstream.measure import Engine, FailureKind, MeasureConfig, gpu_measurer
from slipstream.measure.devices import gpu_process
from tests.measure.misbehaving import KEY, good, program, segfault, wrong_result

H200 = CudaDevice("H200", "sm_90", 232448, multiprocessors=132)
A10 = CudaDevice("A10", "sm_86", 101376, multiprocessors=72)


def waits_for(file: Path) -> Any:
    """A correct program that ends once `file` is there."""
    name = str(file)

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        while T.call_extern("int32", "access", name, 0) != 0:
            T.evaluate(T.call_extern("int32", "usleep", 10000))
        for i in range(4096):
            with T.sblock("c"):
                v = T.axis.spatial(4096, i)
                c[v] = a[v] * T.float32(2) + T.float32(1)

    return main


@pytest.fixture
def measurer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(gpu_process, "WORKER", "tests.measure.cpu_as_gpu")
    monkeypatch.setenv("GPUS_SEEN", str(tmp_path))
    config = MeasureConfig(gpus=("GPU-a", "GPU-b"), run_seconds=60.0)
    with gpu_measurer(resolve_target(), {KEY: program(good(1), "").module}, config) as measurer:
        yield measurer


def _told(folder: Path, process: gpu_process.GpuProcess) -> str:
    """The GPU a worker was told to use, once it has started."""
    note, deadline = folder / str(process.pid), time.monotonic() + 60
    while not note.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return note.read_text()


def test_programs_run_beside_each_other_and_a_crash_costs_one_process(measurer: Engine, tmp_path: Path) -> None:
    before = [gpu.process for gpu in measurer.devices.gpus]
    assert [_told(tmp_path, process) for process in before] == ["GPU-a", "GPU-b"]
    others_ended = tmp_path / "others-ended"
    results = []
    for m in measurer.measure(
        [program(waits_for(others_ended), "waits"), *(program(good(n), str(n)) for n in (1, 2, 4))]
    ):
        results.append(m)
        if len(results) == 3:
            others_ended.touch()
    assert [m.failure for m in results] == [None] * 4
    assert results[-1].program.label == "waits"  # the other GPU ran the rest meanwhile
    settled = measurer.settle(results[:-1], np.random.default_rng(0))
    assert settled is not None
    assert settled.winner.verified

    programs = [program(segfault, "crash"), program(wrong_result, "wrong"), program(good(8), "8")]
    last = {m.program.label: m for m in measurer.measure(programs)}
    kinds = {label: m.failure.kind for label, m in last.items() if m.failure is not None}
    assert kinds == {"crash": FailureKind.CRASH, "wrong": FailureKind.WRONG_RESULT}
    assert last["8"].verified
    after = [gpu.process for gpu in measurer.devices.gpus]
    assert sum(a is b for a, b in zip(before, after, strict=True)) == 1


@pytest.mark.skipif(bool(find_devices()), reason="this machine has a GPU")
def test_without_a_gpu_a_measurer_says_so_at_once() -> None:
    with pytest.raises(TargetError, match="no NVIDIA GPU answers here: 'slipstream doctor'"):
        gpu_measurer(resolve_target("cuda:sm_90"), {})


@pytest.mark.parametrize(
    ("visible", "devices", "used"),
    [
        (None, (H200,), ("0",)),
        (None, (H200, A10, H200), ("0", "2")),
        ("3, GPU-x,1", (A10, A10, H200), ("3", "GPU-x")),
        ("2,9", (H200,), ("2",)),  # the driver stops at a GPU that is not there
        (None, (), ()),
    ],
)
def test_gpus_of_another_model_have_no_part(visible, devices, used, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert equal_gpus(devices) == used
