"""What preparation did, as plain data: it can be read without importing TVM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassReport:
    """What one pass did to one model."""

    name: str
    why: str
    seconds: float
    skipped: str = ""
