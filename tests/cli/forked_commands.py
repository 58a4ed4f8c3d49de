"""Commands as forked copies of one process that has imported TVM already: starting one takes no seconds.

python -m tests.cli.forked_commands: for each line of JSON on stdin, [arguments, directory], a line on stdout with
[exit status, stdout, stderr] of the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn


class ForkedCommands:
    """`slipstream ...` with the same exit status and output as in a process of its own."""

    def __enter__(self) -> ForkedCommands:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.communicate(timeout=20)

    def __call__(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([arguments, str(cwd)]), file=self._server.stdin, flush=True)
        return subprocess.CompletedProcess(arguments, *json.loads(self._server.stdout.readline()))


def _command(arguments: list[str], directory: str, output: int, errors: int) -> NoReturn:
    from slipstream.cli import main

    status = 1
    try:
        os.chdir(directory)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        main(arguments, prog_name="slipstream")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve() -> None:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    import slipstream.artifact.compile
    import slipstream.frontends
    import slipstream.session.run  # noqa: F401
    from slipstream.tvm_bridge.intrinsics import import_intrinsics

    import_intrinsics()

    for line in sys.stdin:
        arguments, directory = json.loads(line)
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if child == 0:
                _command(arguments, directory, output.fileno(), errors.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            for file in (output, errors):
                file.seek(0)
            print(json.dumps([status, output.read(), errors.read()]), flush=True)


if __name__ == "__main__":
    _serve()
