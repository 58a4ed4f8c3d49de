"""The thread pool: every task once, nobody awake when idle, no thread left; and the same after a fork."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slipstream.machine.linker import find_linker
from slipstream.runtime.link import NATIVE

_STRESS = Path(__file__).with_name("pool_stress.c")


def _build(output: Path, *options: str) -> Path | None:
    compiler = find_linker()
    if compiler is None or "-nostdlib" in compiler:
        pytest.skip("needs a C compiler that makes programs")
    sources = [str(_STRESS), str(NATIVE / "pool.c")]
    command = [*compiler, "-O2", "-g", *options, f"-I{NATIVE}", *sources, "-o", str(output), "-pthread"]
    return output if subprocess.run(command, capture_output=True).returncode == 0 else None


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_every_task_runs_once_whoever_calls(tmp_path: Path, threads: int) -> None:
    stress = _build(tmp_path / "stress")
    done = subprocess.run([str(stress), str(threads), "200"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{threads - 1} workers, {threads - 1} asleep" in done.stdout


def test_no_data_races(tmp_path: Path) -> None:
    stress = _build(tmp_path / "stress", "-fsanitize=thread")
    if stress is None:
        pytest.skip("this compiler has no ThreadSanitizer")
    done = subprocess.run([str(stress), "3", "30"], capture_output=True, text=True, timeout=120)
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
