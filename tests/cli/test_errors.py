"""A command whose reader goes away ends quietly; any other broken pipe is an error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
