"""Slipstream's own artifact; `artifacts` has the directory of each side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rivals.sides import Run


def settings(side: str, options: Mapping[str, Any]) -> Sequence[str]:
    return ("",)


def open_side(job: Mapping[str, Any], feeds: dict[str, Any]) -> Run:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    from slipstream.artifact.loaded import load

    compiled = load(job["options"]["artifacts"][job["name"]], threads=job["threads"])
    return lambda: compiled(feeds)
