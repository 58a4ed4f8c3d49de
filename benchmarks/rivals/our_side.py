"""Slipstream's own artifact; `job["artifacts"]` has the directory of each side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.rivals.contender import Run, feeds


def environment(threads: int) -> dict[str, str]:
    return {}


def variants(side: str, job: Mapping[str, Any]) -> dict[str, Run]:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    from slipstream.artifact.loaded import load

    compiled, values = load(job["artifacts"][side], threads=job["threads"]), feeds(job)
    return {"": lambda: compiled(values)}
