"""What the machine's processors are called, with tools that answer, fail and hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.machine import cpu

_ARM_CPUINFO = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


def test_cpu_model_of_this_machine() -> None:
    assert cpu.cpu_model()


def test_cpu_model_without_a_name_in_cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(_ARM_CPUINFO)
    monkeypatch.setattr(cpu, "_CPUINFO", cpuinfo)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpu.cpu_model().endswith("CPU implementer 0x41, CPU part 0xd0c")
    _tool(tmp_path, "lscpu", "echo 'Architecture: aarch64'; echo 'Model name:   Neoverse-N1'")
    assert cpu.cpu_model() == "Neoverse-N1"


def test_no_gpu_without_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpu.gpus() == []


def test_gpus_the_driver_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    _tool(
        tmp_path,
        "nvidia-smi",
        "echo 'NVIDIA H200, 143771, 580.95.05'; echo 'NVIDIA Orin (nvgpu), [N/A], 540.4.0'",
    )
    assert cpu.gpus() == [
        cpu.Gpu("NVIDIA H200", 143771 * 2**20, "580.95.05"),
        cpu.Gpu("NVIDIA Orin (nvgpu)", None, "540.4.0"),
    ]


@pytest.mark.parametrize("script", ["echo 'no driver, no memory, 1'; exit 9", "exec /bin/sleep 30"])
def test_no_gpu_where_the_drivers_tool_fails_or_hangs(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cpu, "_TOOL_TIMEOUT_S", 0.2)
    _tool(tmp_path, "nvidia-smi", script)
    assert cpu.gpus() == []


def _tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
