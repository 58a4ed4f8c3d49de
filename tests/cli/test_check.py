"""`slipstream check` and `compile --lock` as CI sees them: exit codes, one line for a mistake, reports."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from slipstream.artifact.check import CheckPart, CheckResult
from slipstream.artifact.check_report import write_report
from slipstream.artifact.lock import Lock, LockedLatency, locked_operators
from slipstream.artifact.manifest import BuildChoices, Manifest
from slipstream.machine.target import resolve_target
from tests.cli.forked_commands import ForkedCommands


@pytest.fixture
def lock(tiny_artifact: Path, tmp_path: Path) -> Lock:
    """The lock file of a model with its default programs, `slipstream.lock` in the test's directory."""
    from tests.session.synthetic import operators

    manifest = Manifest.read(tiny_artifact)
    rows = [(o.key, o.name, o.weight, None) for o in operators().values()]
    made = Lock.of(manifest, resolve_target(), locked_operators(rows, {}), {"": LockedLatency(1e-4)})
    made.write(tmp_path / "slipstream.lock")
    return made


@pytest.mark.usefixtures("lock")
def test_compile_rebuilds_from_the_lock_file(
    forked_command: ForkedCommands, tiny_artifact: Path, tmp_path: Path
) -> None:
    done = forked_command("compile", "zoo:tiny_cnn", "-o", "out", "--lock", "slipstream.lock", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Manifest.read(tmp_path / "out").checksums == Manifest.read(tiny_artifact).checksums


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "zoo:tiny_cnn", "--lock", "none.lock"], "there is no lock file none.lock: write one with"),
        (["check", "no.onnx"], "there is no file no.onnx: give an ONNX file"),
        (["check", "zoo:tiny_cnn", "--max-regression", "ten"], "a largest regression of 'ten' makes no sense"),
        (["check", "zoo:tiny_cnn", "--report", "r.txt"], "a report is JUnit's .xml or .json, not r.txt"),
        (["check", "zoo:tiny_cnn", "--report", "no/r.xml"], "cannot write no/r.xml: give a file in a directory"),
        (["compile", "zoo:tiny_cnn", "-o", "x", "--lock", "none.lock"], "there is no lock file none.lock"),
        (["compile", "zoo:tiny_cnn", "-o", "x", "--lock", "slipstream.lock", "--threads", "999"], "leave out --target"),
    ],
)
@pytest.mark.usefixtures("lock")
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, forked_command: ForkedCommands, tmp_path: Path
) -> None:
    done = forked_command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(rf"error: .*{re.escape(said)}.*\n", done.stderr), done.stderr
    assert not (tmp_path / "x").exists()


def test_a_check_that_cannot_be_done_is_in_the_report(forked_command: ForkedCommands, tmp_path: Path) -> None:
    done = forked_command("check", "zoo:tiny_cnn", "--report", "r.xml", cwd=tmp_path)
    assert done.returncode == 2
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "2")


def test_other_programs_are_exit_code_1(
    forked_command: ForkedCommands, tiny_artifact: Path, lock: Lock, tmp_path: Path
) -> None:
    replace(lock, choices={"": BuildChoices(exact_functions=True)}).write(tmp_path / "slipstream.lock")
    done = forked_command("check", str(tiny_artifact), "--report", "r.json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "programs  failed: " in done.stdout
    assert "results   ok: 1 output(s) match onnxruntime" in done.stdout
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["passed"] is False
    assert [part["passed"] for part in content["parts"]] == [False, True, None]


def test_reports_say_what_was_found(tmp_path: Path) -> None:
    parts = (CheckPart("programs", True, "same", 1.0), CheckPart("results", False, "<wrong> & more", 2.0))
    result = CheckResult("m.onnx", "x.lock", (*parts, CheckPart("speed", None, "left out")), ("a warning",))
    write_report(tmp_path / "r.xml", result)
    suite: Any = ElementTree.parse(tmp_path / "r.xml").getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "time")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
        "time": "3.000",
    }
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {"programs": ["system-out"], "results": ["failure"], "speed": ["skipped"]}
    assert suite.find(".//failure").get("message") == "<wrong> & more"
    write_report(tmp_path / "r.json", result)
    assert json.loads((tmp_path / "r.json").read_text())["warnings"] == ["a warning"]
