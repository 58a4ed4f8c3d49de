"""The live page of a session, in a process of its own beside the one that tunes.

It ends when its standard input does, that is with the process that started it, however that ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.report.errors import ReportError
from slipstream.report.server import Server, stay_in_the_background

PORT = 8765
_LAST_LOOK_S = 5.0


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The address of a live page of `directory`, which need not exist yet, while the block lasts."""
    command = [sys.executable, "-P", "-m", "slipstream.report.live_process", str(directory.absolute())]
    # In a session of its own, Ctrl-C in the terminal does not reach it: the page shows how the tuning ends.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise ReportError("the live page could not be started: tune without --serve, or try 'slipstream serve'")
        try:
            yield url
        finally:
            process.stdin.close()
            process.terminate()  # a forked worker may still hold the other end of the pipe
            try:
                process.wait(_LAST_LOOK_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _main(directory: Path) -> None:
    stay_in_the_background()
    try:
        server = Server(directory, "127.0.0.1", PORT, None)
    except ReportError:  # somebody has the port already
        server = Server(directory, "127.0.0.1", 0, None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print(server.url, flush=True)
    try:
        sys.stdin.read()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.close_politely()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
