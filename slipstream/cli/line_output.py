"""Line-by-line output to a log or a pipe whose reader may close it at any time."""

from __future__ import annotations

import os
import select
from typing import TextIO


class LineOutput:
    """Flushes every line. Once the reader has closed its end, later lines are dropped and no error is raised."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._closed = False

    def write(self, line: str) -> None:
        """Write `line` and a line break; characters that the stream cannot encode become question marks."""
        if self._closed:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self._closed = True
            discard(self._stream)


def has_no_reader(stream: TextIO) -> bool:
    """Whether the stream is a pipe or a socket whose other end has been closed."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # closed, or not a file at all
        return False
    return bool(poll.poll(0))


def discard(stream: TextIO) -> None:
    """Send what is still buffered, and all that follows, nowhere: the interpreter would complain about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
