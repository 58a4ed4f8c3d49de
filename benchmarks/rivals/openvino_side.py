"""OpenVINO's CPU plugin as `slipstream bench` runs it; whether to pin its threads depends on the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.rivals.contender import ContenderError, Run, feeds, wanted
from slipstream.artifact.baselines import run_openvino
from slipstream.errors import MissingDependencyError

_VARIANTS: dict[str, dict[str, Any]] = {"as it comes": {}, "threads not pinned": {"ENABLE_CPU_PINNING": False}}


def environment(threads: int) -> dict[str, str]:
    return {}


def variants(side: str, job: Mapping[str, Any]) -> dict[str, Run]:
    values, model, threads = feeds(job), Path(job["model"]), job["threads"]
    try:
        return {name: run_openvino(model, values, threads, **_VARIANTS[name]) for name in wanted(job, list(_VARIANTS))}
    except MissingDependencyError as error:
        raise ContenderError("not installed") from error
