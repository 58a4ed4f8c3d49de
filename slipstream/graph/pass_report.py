"""`PassReport`: what a preparation pass did, as plain data that can be read without importing TVM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassReport:
    """What one pass did to one model."""

    name: str
    why: str
    seconds: float
    skipped: str = ""
