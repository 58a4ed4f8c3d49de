"""On what and with what a session ran, as far as its folder tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slipstream.session.directory import SessionDirectory
from slipstream.session.stored_history import StoredHistory


def environment(directory: SessionDirectory, stored: StoredHistory) -> dict[str, Any]:
    """Hardware, settings, versions and how the compiled model, or each of several, was verified."""
    assert stored.record is not None
    manifests = {model: _manifest(directory.artifact(model)) for model in directory.models or ("",)}
    options = stored.record.options
    return {
        "hardware": stored.hardware,
        "settings": options.get("settings", {}),
        "source": ", ".join(row["source"] for row in options.get("models", ())) or options.get("source"),
        "target": options.get("target"),
        "versions": next(iter(manifests.values())).get("versions", {}),
        "verification": _verification(list(manifests.values())),
        "inputs": [
            {"name": f"{model} {spec.get('name')}".strip(), "shape": spec.get("shape"), "dtype": spec.get("dtype")}
            for model, manifest in manifests.items()
            for spec in manifest.get("inputs", [])
        ],
    }


def _verification(manifests: list[dict[str, Any]]) -> Any:
    """How all of them were verified; None while one of them is not there."""
    found = [manifest.get("verification") for manifest in manifests]
    if len(found) == 1 or not all(found):
        return found[0] if len(found) == 1 else None
    outputs = [output for checked in found if checked for output in checked.get("outputs", ())]
    return {**(found[0] or {}), "outputs": outputs}


def _manifest(artifact: Path) -> dict[str, Any]:
    """The compiled model's; empty while there is none."""
    try:
        found = json.loads((artifact / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
