"""`slipstream doctor` on this installation, and on ones broken on purpose through the module path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slipstream.cli.doctor import doctor as command
from slipstream.machine import doctor
from slipstream.machine.cpu import Gpu

_ROOT = Path(__file__).parents[2]
_CRASH = "import os, signal\nos.kill(os.getpid(), signal.{})\n"
_CRASHES_ON_JSON = """
import os, signal

class ir:
    def save_json(module):
        os.kill(os.getpid(), signal.SIGBUS)

IRModule = dict
"""
_NO_TVM = "raise ImportError('libtvm.so: cannot open shared object file')\n"


def _site(folder: Path, distributions: dict[str, str], tvm: str) -> Path:
    """A site directory that holds nothing but metadata of `distributions` and a module `tvm`."""
    for name, version in distributions.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "tvm").mkdir(parents=True)
    (folder / "tvm" / "__init__.py").write_text(tvm)
    return folder


def _remedies(report: dict[str, Any]) -> dict[str, str]:
    return {problem["what"]: problem["remedy"] for problem in report["problems"]}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a process that finds wrong distributions and a crashing TVM first."""
    distributions = {
        "apache-tvm": "0.26.0",
        "apache-tvm-ffi": "0.1.15.post1",
        "onnxruntime": "1.20.0",
        "onnxruntime-gpu": "1.20.0",
        "xgboost": "3.0.0",
        "xgboost-cpu": "3.0.0",
    }
    site = _site(tmp_path_factory.mktemp("broken"), distributions, _CRASH.format("SIGSEGV"))
    run = subprocess.run(
        [sys.executable, "-c", "from slipstream.cli.doctor import doctor; doctor()", "--json"],
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{_ROOT}", "TVM_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def test_wrong_versions_are_found_with_the_remedy(broken: dict[str, Any]) -> None:
    assert broken["versions"]["apache-tvm-ffi"] == "0.1.15.post1"
    remedies = {what.split(" is ")[0]: remedy for what, remedy in _remedies(broken).items()}
    assert remedies["apache-tvm-ffi 0.1.15.post1"] == "pip install apache-tvm-ffi==0.1.14.post1"
    assert remedies["apache-tvm 0.26.0"] == "pip install apache-tvm==0.27.0.post1"


def test_a_crashing_import_is_reported_with_its_signal(broken: dict[str, Any]) -> None:
    assert "importing TVM was killed by SIGSEGV" in _remedies(broken)
    assert broken["machine"]["target"] is None
    assert broken["machine"]["peak_flops"] is None
    assert broken["machine"]["cores"] > 0


def test_distributions_that_overwrite_each_other_are_found(broken: dict[str, Any]) -> None:
    whats = " ".join(_remedies(broken))
    assert "onnxruntime and onnxruntime-gpu are both installed" in whats
    assert "xgboost-cpu and xgboost are both installed" in whats


def test_variables_that_change_behaviour_are_reported(broken: dict[str, Any]) -> None:
    assert broken["environment"]["TVM_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("tvm", "what"),
    [
        (_NO_TVM, "importing TVM failed: ImportError: libtvm.so: cannot open shared object file"),
        (_CRASHES_ON_JSON, "serialising a TVM module was killed by SIGBUS"),
    ],
    ids=["no library", "crashes on JSON"],
)
def test_broken_tvm(tvm: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_site(tmp_path, {}, tvm))
    problem = doctor.examine(measure=False).problems[-1]
    assert problem.what == what
    assert problem.remedy.startswith("pip install --force-reinstall apache-tvm==")


def test_hanging_tvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_site(tmp_path, {}, "import time\ntime.sleep(60)\n"))
    monkeypatch.setattr(doctor, "_PROBE_TIMEOUT_S", 0.5)
    assert doctor.examine(measure=False).problems[-1].what == "importing TVM did not finish in 0.5 s"


def test_what_else_is_missing_and_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_site(tmp_path, {}, _NO_TVM))
    monkeypatch.setattr(doctor, "_requirements", lambda: ["numpy>=2", "no-such-distribution>=1,<2"])
    monkeypatch.setattr(doctor, "_OLDEST_PYTHON", (99, 0))
    monkeypatch.setattr("slipstream.machine.linker.find_linker", lambda: None)
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    report = doctor.examine(measure=False)
    python, missing, linker, _ = report.problems
    assert "needs 99.0 or newer" in python.what
    assert missing.remedy == "pip install 'no-such-distribution>=1,<2'"
    assert "slipstream[linker]" in linker.remedy
    assert "load 1000.0" in report.notes[-1]


def test_requirements_are_those_of_the_installed_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_site(tmp_path, {"slipstream": "9.9"}, _NO_TVM))
    with (tmp_path / "slipstream-9.9.dist-info" / "METADATA").open("a") as file:
        file.write('Requires-Dist: numpy==1.0\nRequires-Dist: torch==1.0; extra == "torch"\n')
    assert doctor._version("slipstream") == "9.9"
    (problem,) = doctor._check_requirements()
    assert problem.remedy == "pip install numpy==1.0"


def test_onnxruntime_gpu_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_requirements", lambda: ["onnxruntime>=1.20,<2"])
    monkeypatch.setattr(doctor, "_version", {"onnxruntime-gpu": "1.20.0"}.get)
    assert list(doctor._check_requirements()) == []
    assert list(doctor._check_exclusive()) == []


def test_this_installation_is_healthy() -> None:
    result = CliRunner().invoke(command, ["--json"])
    report = json.loads(result.stdout)
    assert report["problems"] == []
    assert result.exit_code == 0
    assert report["versions"]["apache-tvm-ffi"] == "0.1.14.post1"
    assert report["machine"]["features"]
    assert report["machine"]["peak_flops"] > 1e9
    assert report["machine"]["bandwidth"] > 0.5e9


def test_text_ends_with_problems_and_remedies_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "apt-get install a-compiler-with-quite-a-long-name, or pip install 'slipstream[linker]'"
    machine = doctor.Machine(
        "Neoverse-N1", "aarch64", 2, 0.5, [Gpu("H200", 2**37, "580.1")], "n1", ["neon"], peak_flops=96e9
    )
    report = doctor.Report(
        {"python": "3.11.7", "torch": None}, machine, {}, ["noisy"], [doctor.Problem("no linker", remedy)]
    )
    monkeypatch.setattr(doctor, "examine", lambda measure: report)
    result = CliRunner().invoke(command, ["--no-measure"])
    assert result.exit_code == 1
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[-3:] == ["note: noisy", "problem: no linker", f"mend: {remedy}"]
    assert any("96 GFLOP/s" in line for line in lines)
    assert any("H200, 128 GiB, driver 580.1" in line for line in lines)
    assert not any("torch" in line for line in lines)


def test_importing_the_command_is_cheap() -> None:
    check = "import sys, slipstream.cli.doctor; sys.exit('tvm' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], cwd=_ROOT, check=True, timeout=60)
