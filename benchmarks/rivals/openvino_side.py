"""OpenVINO's CPU plugin as `slipstream bench` runs it; whether to pin its threads depends on the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rivals.sides import Run
from slipstream.artifact.baselines import run_openvino

_SETTINGS: dict[str, dict[str, Any]] = {"as it comes": {}, "threads not pinned": {"ENABLE_CPU_PINNING": False}}


def settings(side: str, options: Mapping[str, Any]) -> Sequence[str]:
    return list(_SETTINGS)


def open_side(job: Mapping[str, Any], feeds: dict[str, Any]) -> Run:
    return run_openvino(Path(job["options"]["model"]), feeds, job["threads"], **_SETTINGS[job["setting"]])
