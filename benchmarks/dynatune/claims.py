"""The figures that docs/dynatune.md holds against the paper's claims, apart from those of `summary`."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.dynatune import challenges, transformation_space
from benchmarks.dynatune.replays import Study


def make(study: Study) -> list[Path]:
    """Write `dynatune_claims.json`."""
    content = {
        "challenges": challenges.findings(study.recordings),
        "transformation_space": transformation_space.findings(
            transformation_space.read(study.curves / transformation_space.MEASURED.name)
        ),
    }
    study.results.mkdir(parents=True, exist_ok=True)
    path = study.results / "dynatune_claims.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return [path]
