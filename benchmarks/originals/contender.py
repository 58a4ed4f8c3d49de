"""The artifact's built model in its own process, taking turns with the other sides."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.originals.artifact import BuiltArtifact
from benchmarks.rivals import sides
from slipstream.artifact.contender import Contender, Job


class OriginalContender(Contender):
    """Asked as every contender is; its process is the artifact's Python."""

    def __init__(self, job: Job, artifact: BuiltArtifact, tree: str) -> None:
        self.job = job
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the process
        self._process = subprocess.Popen(
            artifact.command("serve_model.py"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=artifact.environment(tree, job.threads),
            start_new_session=True,
        )
        self._send(asdict(job))


def start(side: str, options: Mapping[str, Any], setting: str | None = None) -> dict[str, Contender]:
    """As `benchmarks.rivals.sides.start`; a side with a `tree` is one of the artifact's."""
    if "tree" not in options:
        return sides.start(side, options, setting)
    job = Job(side, "", options["artifacts"][side], None, options["feeds"], options["threads"])
    return {"": OriginalContender(job, BuiltArtifact(Path(options["build"])), options["tree"])}
