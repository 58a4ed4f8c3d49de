"""Targets: this CPU, an older one, and what is refused."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import slipstream
from slipstream.errors import TargetError
from slipstream.machine import target as target_module
from slipstream.machine.cuda import find_device
from slipstream.machine.processor_time import processor_time
from slipstream.machine.target import available_cores, host_features, resolve_target


def test_this_machine() -> None:
    target = resolve_target()
    assert target.architecture == platform.machine()
    assert target.threads == available_cores() == len(os.sched_getaffinity(0))
    assert target.vector_lanes in (4, 8, 16)
    assert target.tvm.kind.name == "llvm"
    assert all(feature.replace("-", "") in host_features() for feature in target.features)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 CPUs")
@pytest.mark.parametrize(
    ("cpu", "lanes", "registers"), [("x86-64", 4, 16), ("haswell", 8, 16), ("skylake-avx512", 16, 32)]
)
def test_lanes_and_registers_follow_the_cpu(cpu: str, lanes: int, registers: int) -> None:
    try:
        target = resolve_target(f"cpu:{cpu}")
    except TargetError as error:
        pytest.skip(str(error))
    assert (target.vector_lanes, target.vector_registers) == (lanes, registers)


@pytest.mark.parametrize("spec", ["gpu", "", "cpu:nonsense", "llvm -mcpu=haswell"])
def test_unknown_targets_are_refused(spec: str) -> None:
    with pytest.raises(TargetError, match="unknown target"):
        resolve_target(spec)


def test_compiled_code_uses_the_cores_asked_for_and_binds_nobody() -> None:
    """In fresh processes: TVM's own default is half the cores on x86, and the caller bound to core 0."""
    script = (
        "from slipstream.tvm_bridge.imports import import_tvm_without_torch\n"
        "import_tvm_without_torch()\n"
        "import os, sys, tvm_ffi, tvm\n"
        "from slipstream.machine.threads import use_threads\n"
        "before = os.sched_getaffinity(0)\n"
        "use_threads(int(sys.argv[1]))\n"
        "print(tvm_ffi.get_global_func('runtime.NumThreads')(), os.sched_getaffinity(0) == before)\n"
    )
    for count in {1, available_cores()}:
        done = subprocess.run([sys.executable, "-c", script, str(count)], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(count), "True"]


def test_a_gpu_can_be_named_without_having_one() -> None:
    target = resolve_target("cuda:sm_90", threads=2)
    assert target.gpu is not None
    assert target.gpu.shared_bytes == 227 * 1024
    assert str(target.tvm.attrs["arch"]) == "sm_90"
    assert target.host.gpu is None
    assert target.tvm.host.kind.name == "llvm"
    with pytest.raises(TargetError, match="unknown GPU architecture 'sm_1'"):
        resolve_target("cuda:sm_1")


def test_a_gpu_as_json() -> None:
    target = resolve_target('{"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 512}')
    assert target.gpu is not None
    assert (target.gpu.architecture, target.gpu.threads) == ("sm_80", 512)
    for text, said in (
        ("{", "no JSON"),
        ('{"kind": "rocm"}', "of kind 'cuda'"),
        ('{"kind": "cuda", "arch": "sm_90", "registers_per_block": "many"}', "whole numbers"),
    ):
        with pytest.raises(TargetError, match=said):
            resolve_target(text)


@pytest.mark.skipif(find_device() is not None, reason="this machine has a GPU")
def test_without_a_gpu() -> None:
    assert resolve_target("auto").gpu is None
    with pytest.raises(TargetError, match="no NVIDIA GPU answers"):
        resolve_target("cuda")


@pytest.mark.skipif(find_device() is not None, reason="this machine has a GPU")
def test_tuning_for_a_gpu_that_is_not_there_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no NVIDIA GPU answers"):
        slipstream.tune("zoo:tiny_cnn", tmp_path / "out", target="cuda:sm_90", trials=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("limit", "expected"), [("150000 100000", 2), ("max 100000", 9), ("5000 100000", 1), ("", 9)])
def test_a_containers_share_of_processor_time_limits_the_cores(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "cpu.max").write_text(limit)
    monkeypatch.setattr(target_module, "processor_time", partial(processor_time, _process(tmp_path, "0::/", "cgroup2")))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(9)))
    assert target_module.available_cores() == expected


@pytest.mark.parametrize(
    ("place", "root", "kind", "least"),
    [
        ("0::/outer/inner/own", "/", "cgroup2", 3.0),
        ("0::/outer/inner/own", "/outer/inner", "cgroup2", 4.0),
        ("0::/elsewhere", "/outer", "cgroup2", math.inf),
        ("0::/../other", "/", "cgroup2", math.inf),
        ("0::/outer", "/", "cgroup2", 3.0),
        ("5:cpuset:/outer\n4:cpu,cpuacct:/outer/inner/own\n0::/", "/", "cgroup", 3.0),
        ("4:cpu,cpuacct:/docker/7f/inner", "/docker/7f", "cgroup", 4.0),
        ("5:cpuset:/outer", "/", "cgroup", math.inf),
        ("damaged", "/", "cgroup", math.inf),
    ],
)
def test_groups_around_the_process_limit_it_too(place: str, root: str, kind: str, least: float, tmp_path: Path) -> None:
    """The outermost of three groups allows 3 cores, the one in it 4, the process's own anything."""
    process = _process(tmp_path, place, kind, root)
    inner = tmp_path / "group" / ("outer/inner" if root == "/" else "inner" if "docker" in root else ".")
    inner.joinpath("own").mkdir(parents=True, exist_ok=True)
    for folder, cores in ((inner, 4), (inner.parent, 3), (inner / "own", None)):
        if kind == "cgroup2":
            (folder / "cpu.max").write_text(f"{cores * 100000 if cores else 'max'} 100000\n")
        else:
            (folder / "cpu.cfs_quota_us").write_text(f"{cores * 50000 if cores else -1}\n")
            (folder / "cpu.cfs_period_us").write_text("50000\n")
    if root != "/":
        (inner.parent / "cpu.max").unlink(missing_ok=True)
        (inner.parent / "cpu.cfs_quota_us").unlink(missing_ok=True)
    if place == "0::/elsewhere":
        (inner / "cpu.max").unlink()
    assert processor_time(process) == least


def _process(folder: Path, place: str, kind: str, root: str = "/") -> Path:
    """What the kernel tells of a process that is in a group and sees groups of this kind in `folder / "group"`."""
    (folder / "cgroup").write_text(f"{place}\n")
    options = "rw,cpu,cpuacct" if kind == "cgroup" else "rw,nsdelegate"
    (folder / "mountinfo").write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        f"30 22 0:26 {root} {folder}/group rw,nosuid shared:4 - {kind} cgroup {options}\n"
    )
    return folder
