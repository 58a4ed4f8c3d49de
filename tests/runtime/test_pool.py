"""The thread pool: every task once, nobody awake when idle, no thread left; the same after a fork; sharing."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from slipstream.machine.linker import find_linker
from slipstream.runtime.library import POOL
from slipstream.runtime.link import NATIVE, pool_library

_HERE = Path(__file__).parent


def _build(source: str, output: Path, *options: str) -> Path | None:
    compiler = find_linker()
    if compiler is None or "-nostdlib" in compiler:
        pytest.skip("needs a C compiler that makes programs")
    sources = [str(_HERE / source)]
    if '#include "pool.c"' not in (_HERE / source).read_text():
        sources.append(str(NATIVE / "pool.c"))
    command = [*compiler, "-O2", "-g", *options, f"-I{NATIVE}", *sources, "-o", str(output), "-pthread"]
    return output if subprocess.run(command, capture_output=True).returncode == 0 else None


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_every_task_runs_once_whoever_calls(tmp_path: Path, threads: int) -> None:
    stress = _build("pool_stress.c", tmp_path / "stress")
    done = subprocess.run([str(stress), str(threads), "200"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    workers, asleep = map(int, re.fullmatch(r"(\d+) workers, (\d+) asleep\n", done.stdout).groups())
    # Several calls at a time have up to a thread for each processor.
    assert asleep == workers
    assert threads - 1 <= workers < max(threads, os.cpu_count() or 1)


def test_running_calls_share_the_threads_of_those_that_come_and_go(tmp_path: Path) -> None:
    sharing = _build("pool_sharing.c", tmp_path / "sharing")
    done = subprocess.run([str(sharing)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["2", "2", "8", "4", "2", "8", "7", "1"]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("0::/outer/inner/own", 3),  # the outermost allows 3, the one in it 4, the process's own anything
        ("0::/", 8),
        ("0::/seen/from/outside", 8),
        ("5:cpuset:/outer\n4:cpu,cpuacct:/old/own\n0::/", 5),
        ("4:cpuacct,cpu:/seen/from/outside", 6),  # the top one allows 6
        ("damaged", 8),
        ("", 8),
    ],
)
def test_limits_of_processor_time(own: str, expected: int, tmp_path: Path) -> None:
    for folder, text in (("outer", "300000 100000"), ("outer/inner", "400000 100000"), ("outer/inner/own", "max 100")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cpu.max").write_text(f"{text}\n")
    for folder, quota in (("cpu", 300000), ("cpu/old", 250000), ("cpu/old/own", -1)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (tmp_path / folder / "cpu.cfs_period_us").write_text("50000\n")
    (tmp_path / "own").write_text(own)
    places = [f'-DCONTROL_GROUPS="{tmp_path}"', f'-DOWN_GROUPS="{tmp_path}/own"']
    limits = _build("pool_limits.c", tmp_path / "limits", *places)
    assert subprocess.run([str(limits)], capture_output=True, text=True, check=True).stdout == f"{expected}\n"


def test_every_thread_of_several_calls_has_a_processor_of_its_own(tmp_path: Path) -> None:
    placement = _build("pool_placement.c", tmp_path / "placement")
    done = subprocess.run([str(placement)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"


def test_threads_round_as_usual_whoever_started_them(tmp_path: Path) -> None:
    rounding = _build("pool_rounding.c", tmp_path / "rounding", "-Wl,--no-as-needed", "-lm")
    done = subprocess.run([str(rounding)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"


def test_threads_that_compile_the_pool_at_once_all_get_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    began = Barrier(4)

    def compile_pool(_: int) -> bytes:
        began.wait()
        return pool_library().read_bytes()

    with ThreadPoolExecutor(4) as pool:
        contents = list(pool.map(compile_pool, range(4)))
    assert len(contents[0]) > 0
    assert contents == [pool_library().read_bytes()] * 4
    assert [path.name for path in pool_library().parent.iterdir()] == [POOL]


def test_no_data_races(tmp_path: Path) -> None:
    stress = _build("pool_stress.c", tmp_path / "stress", "-fsanitize=thread")
    if stress is None:
        pytest.skip("this compiler has no ThreadSanitizer")
    done = subprocess.run([str(stress), "3", "30"], capture_output=True, text=True, timeout=120)
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
