"""On what and with what a session ran, as far as its folder tells."""

from __future__ import annotations

import json
from typing import Any

from slipstream.session.directory import SessionDirectory
from slipstream.session.stored_history import StoredHistory


def environment(directory: SessionDirectory, stored: StoredHistory) -> dict[str, Any]:
    """Hardware, settings, versions and how the compiled model was verified."""
    assert stored.record is not None
    manifest = _manifest(directory)
    options = stored.record.options
    return {
        "hardware": stored.hardware,
        "settings": options.get("settings", {}),
        "source": options.get("source"),
        "target": options.get("target"),
        "versions": manifest.get("versions", {}),
        "verification": manifest.get("verification"),
        "inputs": [
            {"name": spec.get("name"), "shape": spec.get("shape"), "dtype": spec.get("dtype")}
            for spec in manifest.get("inputs", [])
        ],
    }


def _manifest(directory: SessionDirectory) -> dict[str, Any]:
    """The compiled model's; empty while there is none."""
    try:
        found = json.loads((directory.model / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
