"""What a child process prints: a file in memory, of which the last lines are shown when something fails."""

from __future__ import annotations

import fcntl
import os
import re

_LAST_LINES = 20
_TAIL_BYTES = 65536
# What TVM prints of a crash is mostly the interpreter that called it.
_INTERPRETER = re.compile(r'\s*File "(Python|Objects|Modules|\./Include|<unknown>|<frozen|\./signal)')


def open_log() -> int:
    """The descriptor of an empty file in memory that several processes may append to."""
    log = os.memfd_create("slipstream-log", os.MFD_CLOEXEC)
    fcntl.fcntl(log, fcntl.F_SETFL, os.O_APPEND)
    return log


def last_lines(log: int) -> str:
    """The end of what was printed to `log`, without the frames of the Python interpreter."""
    size = os.fstat(log).st_size
    data = os.pread(log, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    lines = data.decode(errors="replace").strip().splitlines()
    return "\n".join([line for line in lines if not _INTERPRETER.match(line)][-_LAST_LINES:])
