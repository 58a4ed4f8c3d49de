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

    @property
    def warning(self) -> str:
        """A sentence for the user if the pass was left out."""
        return self.skipped and (
            f"the pass {self.name!r} was left out, since TVM failed on it ({self.skipped}): "
            "the model is compiled without it and may be slower"
        )
