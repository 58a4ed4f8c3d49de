"""Real processes that use a store and are limited, locked out or killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A new interpreter running `script`, with pipes; `arguments` are its sys.argv[1:]."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def as_nobody(action: Callable[[], object]) -> str:
    """What `action` returns or raises, as text, in a forked process without root's rights."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            text = str(action())
        except BaseException as error:
            text = "".join(traceback.format_exception_only(error))
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text
