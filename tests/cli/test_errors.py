"""A command whose reader goes away ends quietly; any other broken pipe is an error, a file without access a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from slipstream.cli.errors import one_line_errors

_COMMAND = """
import os, sys, click
from slipstream.cli.errors import one_line_errors

@click.command()
@one_line_errors
def command():
    if sys.argv[1] == "worker":
        reader, writer = os.pipe()
        os.close(reader)
        os.write(writer, b"task")
    for number in range(100_000):
        click.echo(f"line {number}")

command(args=[])
"""


@pytest.mark.parametrize(("broken", "code", "says"), [("stdout", 0, ""), ("worker", 1, "internal error: BrokenPipe")])
def test_only_a_broken_stdout_ends_a_command_well(broken: str, code: int, says: str) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, broken], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    if broken == "stdout":
        os.close(reader)
    complaint = process.communicate(timeout=60)[1]
    if broken != "stdout":
        os.close(reader)
    assert process.returncode == code
    assert says in complaint
    assert bool(complaint) == bool(says)


def test_a_file_that_cannot_be_accessed_is_no_internal_error(tmp_path: Path) -> None:
    @click.command()
    @one_line_errors
    def command() -> None:
        (tmp_path / "file" / "below").read_text()

    (tmp_path / "file").write_text("no directory")
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 2
    assert done.stderr == f"error: cannot access {tmp_path / 'file' / 'below'}: Not a directory\n"
    assert "NotADirectoryError" in CliRunner().invoke(command, ["--debug"]).stderr
