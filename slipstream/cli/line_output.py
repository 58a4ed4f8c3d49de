"""Line-by-line output to a log or a pipe whose reader may close it at any time."""

from __future__ import annotations

import os
from typing import TextIO


class LineOutput:
    """Flushes every line. If the reader has closed the pipe, later lines are dropped and the command continues."""

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
            self._drain()

    def _drain(self) -> None:
        """Let what is still buffered go nowhere, or the interpreter complains about it at exit."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
