"""The last benchmark of each of a session's models, kept in its directory for the report."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.artifact.directory import replace_text
from slipstream.artifact.request_pattern import RequestPattern
from slipstream.errors import SlipstreamError
from slipstream.session.directory import SESSION, SessionDirectory, own_file

if TYPE_CHECKING:
    from slipstream.artifact.bench import BenchResult

FILE_NAME = "bench.json"
_BACK_TO_BACK = RequestPattern()


def keep_benchmark(directory: Path, results: Sequence[BenchResult]) -> None:
    """Write down how each shape of the model ran back to back, if that was measured and `directory` is a session, or
    one of several models of a session, that may be written to. Other patterns of requests are not what a tuning
    session's latencies compare with."""
    plain = [(result, part) for result in results for part in result.parts if part.pattern == _BACK_TO_BACK]
    if not plain or (found := _session_of(directory.absolute())) is None or not os.access(found[0].path, os.W_OK):
        return
    session, model = found
    of_shapes = [{"shape": result.shape, "timings": part.timings, "ratios": part.ratios} for result, part in plain]
    own = of_shapes[0] if len(plain) == 1 else {"timings": [], "ratios": [], "shapes": of_shapes}
    kept = {"threads": results[0].threads, **own}
    measured = {"model": _manifest_digest(session.artifact(model)), "measured_at": time.time(), **kept}
    text = json.dumps(measured, indent=1, default=asdict)
    replace_text(benchmark_file(session, model), text + "\n")


def read_benchmark(session: SessionDirectory, model: str = "") -> dict[str, Any] | None:
    """The last benchmark; None if there is none, or if the model was compiled anew since."""
    try:
        found: dict[str, Any] = json.loads(benchmark_file(session, model).read_text())
        return found if found["model"] == _manifest_digest(session.artifact(model)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def benchmark_file(session: SessionDirectory, model: str = "") -> Path:
    return session.path / own_file(FILE_NAME, model)


def _session_of(directory: Path) -> tuple[SessionDirectory, str] | None:
    """The session that a directory is, or of which it is one of several models, whose name comes with it."""
    for path, model in ((directory, ""), (directory.parent, directory.name)):
        if (path / SESSION).is_file():
            try:
                session = SessionDirectory.read(path)
            except SlipstreamError:
                return None
            return (session, model) if model in (session.models or ("",)) else None
    return None


def _manifest_digest(artifact: Path) -> str:
    return hashlib.blake2b((artifact / "manifest.json").read_bytes(), digest_size=10).hexdigest()
