"""The last benchmark of a session's model, kept in its directory for the report."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.session.directory import MODEL, SESSION

if TYPE_CHECKING:
    from slipstream.artifact.bench import BenchResult

FILE_NAME = "bench.json"


def keep_benchmark(directory: Path, result: BenchResult) -> None:
    """Write a benchmark down, if `directory` is a session that may be written to."""
    if not (directory / SESSION).is_file() or not os.access(directory, os.W_OK):
        return
    text = json.dumps({"model": _manifest_digest(directory), "measured_at": time.time(), **_plain(result)}, indent=1)
    unfinished = directory / f".{FILE_NAME}-{os.getpid()}"
    unfinished.write_text(text + "\n")
    unfinished.replace(directory / FILE_NAME)


def read_benchmark(directory: Path) -> dict[str, Any] | None:
    """The last benchmark; None if there is none, or if the model was compiled anew since."""
    try:
        found: dict[str, Any] = json.loads((directory / FILE_NAME).read_text())
        return found if found["model"] == _manifest_digest(directory) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _plain(result: BenchResult) -> dict[str, Any]:
    values = asdict(result)
    return {name: values[name] for name in ("threads", "timings", "ratios")}


def _manifest_digest(directory: Path) -> str:
    return hashlib.blake2b((directory / MODEL / "manifest.json").read_bytes(), digest_size=10).hexdigest()
