"""The sessions under a folder, each with a revision that changes when there is something new to see."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.report.view import SessionView
from slipstream.session.benchmark import benchmark_file
from slipstream.session.directory import SESSION, SessionDirectory
from slipstream.store.opening import file_stamp, revision

LOOK_S = 0.5  # how often the disk is looked at, however many ask
_FORECASTS = 24  # new ones a reading; the others come with the next
_REST = 4.0  # times what a reading took is waited before the next of that session


def session_directories(root: Path) -> list[SessionDirectory]:
    """The session in `root`, or those in the folders directly under it; what cannot be read is left out."""
    candidates = [root] if (root / SESSION).is_file() else sorted(p.parent for p in root.glob(f"*/{SESSION}"))
    found = []
    for path in candidates:
        try:
            found.append(SessionDirectory.read(path))
        except SlipstreamError:
            continue
    return found


@dataclass
class _Known:
    """A session and the last reading of it, compressed as it is sent."""

    directory: SessionDirectory
    view: SessionView
    lock: threading.Lock = field(default_factory=threading.Lock)
    revision: str = ""
    body: bytes = b""
    summary: dict[str, Any] = field(default_factory=dict)
    read_at: float = 0.0
    read_seconds: float = 0.0
    behind: bool = False  # whether a client was given an older reading than there is
    rounds: int = 0  # goes up when there is more to be had although the store is as it was

    @property
    def rested(self) -> bool:
        return time.monotonic() - self.read_at >= _REST * self.read_seconds


class Sessions:
    """Safe to ask from several threads. However many clients ask, a session is read once per revision."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        self._looked_at = 0.0
        self._revisions: dict[str, str] = {}

    def revisions(self) -> dict[str, str]:
        """Revision by session id, at most `LOOK_S` old."""
        with self._lock:
            if time.monotonic() - self._looked_at >= LOOK_S:
                self._known = self._found()
                for known in self._known.values():
                    if known.behind and known.rested:
                        known.behind = False
                        known.rounds += 1
                self._revisions = {id_: _revision(known) for id_, known in self._known.items()}
                self._looked_at = time.monotonic()
            return dict(self._revisions)

    def _found(self) -> dict[str, _Known]:
        """The sessions there are now, by id; a copied folder has its original's, and gets a number."""
        found: dict[str, _Known] = {}
        for directory in session_directories(self._root):
            name, number = directory.session, 1
            while name in found:
                number += 1
                name = f"{directory.session}~{number}"
            known = self._known.get(name)
            same = known is not None and known.directory == directory
            found[name] = known if known is not None and same else _Known(directory, SessionView(directory))
        return found

    def body(self, session: str) -> bytes | None:
        """The session's structure as gzipped JSON; None if there is no such session."""
        known = self._get(session)
        return None if known is None else self._read(known).body

    def summaries(self) -> list[dict[str, Any]]:
        """One row a session, the newest first; one whose store cannot be read is left out."""
        rows = []
        for session in self.revisions():
            known = self._get(session)
            with contextlib.suppress(SlipstreamError):
                if known is not None:
                    rows.append({**self._read(known).summary, "id": session})
        return sorted(rows, key=lambda row: -row["created_at"])

    def _get(self, session: str) -> _Known | None:
        self.revisions()
        return self._known.get(session)

    def _read(self, known: _Known) -> _Known:
        """Read the session again if it changed, unless that was done a moment ago and took long."""
        with known.lock:
            revision = _revision(known)
            known.behind = bool(known.body) and revision != known.revision and not known.rested
            if not known.body or (revision != known.revision and not known.behind):
                started = time.monotonic()
                structure = known.view.structure(most_forecasts=_FORECASTS)
                text = json.dumps(structure, separators=(",", ":"), allow_nan=False)
                known.body = gzip.compress(text.encode(), compresslevel=1)
                known.summary = _summary(structure)
                known.revision = revision
                known.rounds += known.view.unfinished
                known.read_at = time.monotonic()
                known.read_seconds = known.read_at - started
            return known


def _summary(structure: dict[str, Any]) -> dict[str, Any]:
    session, head = structure["session"], structure["headline"]
    return {
        **{name: session[name] for name in ("id", "name", "model", "state", "created_at", "elapsed")},
        **{name: head[name] for name in ("start", "latency", "end_to_end", "trials")},
    }


def _revision(known: _Known) -> str:
    """Changes with every commit to the store, with its owner, and when forecasts are still to come."""
    directory = known.directory
    files = [benchmark_file(directory, model) for model in directory.models or ("",)]
    files += [artifact / "manifest.json" for artifact in directory.artifacts]
    return "-".join([revision(directory.store, directory.session), *map(file_stamp, files), str(known.rounds)])
