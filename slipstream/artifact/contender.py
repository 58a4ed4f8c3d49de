"""One runtime with one model in a process of its own: the end that asks. `contender_process` is the other one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipstream import errors
from slipstream.artifact.baselines import ModelFiles
from slipstream.artifact.request_pattern import Block, RequestPattern
from slipstream.errors import InputError
from slipstream.frontends.output_files import read_outputs
from slipstream.processes.child import child_environment

OURS = "slipstream"


class BaselineError(InputError):
    """Another runtime cannot run the model; the reason is its own."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot run this model ({reason}): leave it out of --against")
        self.name, self.reason = name, reason


@dataclass(frozen=True)
class Job:
    """What a contender's process loads: the artifact, or its model in another runtime."""

    name: str
    setting: str
    directory: str  # the artifact
    files: ModelFiles | None  # of the model, for other runtimes
    feeds: str  # an archive (.npz) of inputs
    threads: int
    runs_alone: bool = True  # the artifact is a library that needs no TVM
    cores: tuple[int, ...] = ()  # that the process is bound to; nothing: as this process
    loader: str = ""  # "module:function" that makes a `Loader`, for a runtime that is not one of the baselines
    options: Mapping[str, Any] = field(default_factory=dict)  # what that loader needs to know


@dataclass(frozen=True)
class LoadFacts:
    """What loading took: importing the runtime, then reading the model up to the end of its first call."""

    import_seconds: float
    load_seconds: float
    memory_bytes: int  # resident, that both added to an interpreter with NumPy
    process_threads: int


class Contender:
    """A started process. `ready` waits for it; afterwards it sleeps unless it is asked for something."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the process
        threads = str(job.threads)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slipstream.artifact.contender_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=child_environment(ORT_DISABLE_TELEMETRY="1", OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads),
            start_new_session=True,  # Ctrl-C is handled by this process
        )
        self._send(asdict(job))

    def ready(self) -> LoadFacts:
        """Wait until it has run the model once; raises what went wrong, as `BaselineError` if it is not ours."""
        return LoadFacts(**self._answer())

    def outputs(self) -> list[Any]:
        with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
            path = Path(folder, "outputs.npz")
            self._ask(question="outputs", path=str(path))
            return read_outputs(path)

    def block(self, pattern: RequestPattern, seconds: float, seed: int) -> Block:
        """Have it run a block and become idle again."""
        return Block(**self._ask(question="block", pattern=asdict(pattern), seconds=seconds, seed=seed))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None and not stream.closed:
                stream.close()

    def _ask(self, **question: Any) -> dict[str, Any]:
        self._send(question)
        return self._answer()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it ended: reading its answer says how
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"failed": self._how_it_ended()}
        if "result" in answer:
            result: dict[str, Any] = answer["result"]
            return result
        if "error" in answer:
            raise getattr(errors, answer["error"], errors.SlipstreamError)(answer["message"])
        if self.job.name == OURS:
            raise errors.ArtifactError(f"{self.job.directory} cannot be run ({answer['failed']}): compile it again")
        raise BaselineError(self.job.name, answer["failed"])

    def _how_it_ended(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        said = last_line(self._log.read().decode(errors="replace"))
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"its process {how}{': ' if said else ''}{said}"


def last_line(text: str) -> str:
    """The last line that says something, which is where runtimes put the reason; PyTorch has advice behind it."""
    said = text.partition("\nSet TORCHDYNAMO_VERBOSE")[0] or text
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
