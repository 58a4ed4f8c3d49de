"""The last benchmark of a session's model, kept in its directory for the report."""

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
from slipstream.session.directory import MODEL, SESSION

if TYPE_CHECKING:
    from slipstream.artifact.bench import BenchResult

FILE_NAME = "bench.json"
_BACK_TO_BACK = RequestPattern()


def keep_benchmark(directory: Path, results: Sequence[BenchResult]) -> None:
    """Write down how each shape of the model ran back to back, if that was measured and `directory` is a session that
    may be written to. Other patterns of requests are not what a tuning session's latencies compare with."""
    plain = [(result, part) for result in results for part in result.parts if part.pattern == _BACK_TO_BACK]
    if not plain or not (directory / SESSION).is_file() or not os.access(directory, os.W_OK):
        return
    of_shapes = [{"shape": result.shape, "timings": part.timings, "ratios": part.ratios} for result, part in plain]
    own = of_shapes[0] if len(plain) == 1 else {"timings": [], "ratios": [], "shapes": of_shapes}
    kept = {"threads": results[0].threads, **own}
    found = {"model": _manifest_digest(directory), "measured_at": time.time(), **kept}
    text = json.dumps(found, indent=1, default=asdict)
    replace_text(directory / FILE_NAME, text + "\n")


def read_benchmark(directory: Path) -> dict[str, Any] | None:
    """The last benchmark; None if there is none, or if the model was compiled anew since."""
    try:
        found: dict[str, Any] = json.loads((directory / FILE_NAME).read_text())
        return found if found["model"] == _manifest_digest(directory) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _manifest_digest(directory: Path) -> str:
    return hashlib.blake2b((directory / MODEL / "manifest.json").read_bytes(), digest_size=10).hexdigest()
