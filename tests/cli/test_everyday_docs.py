"""The commands and the Python of docs/everyday.md, as they stand there, on a model that is tuned in seconds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest

from slipstream.frontends import zoo
from tests.cli.forked_commands import ForkedCommands

PAGE = (Path(__file__).parents[2] / "docs" / "everyday.md").read_text()
# What would take minutes, and what a busy machine would decide.
SHORTER = {"--budget 5m": "--trials 9 --effort quick", "--max-regression 10%": "--max-regression 99%"}


@pytest.mark.slow
@pytest.mark.timing
def test_the_examples_work(forked_command: ForkedCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(zoo.build("tiny_cnn"), tmp_path / "model.onnx")
    commands = re.findall(r"^slipstream (.*)$", PAGE, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["tune", "compile", "check"]
    for command in commands:
        for long, short in SHORTER.items():
            command = command.replace(long, short)
        done = forked_command(*shlex.split(command), cwd=tmp_path)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert (tmp_path / "junit.xml").is_file()
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    defined: dict[str, Any] = {}
    exec(code.replace("max_regression=0.1", "max_regression=5.0"), defined)
    defined["test_the_model_is_as_fast_as_when_it_was_tuned"]()
