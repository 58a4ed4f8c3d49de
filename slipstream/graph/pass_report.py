"""`PassReport`: what a preparation pass did, as plain data that can be read without importing TVM."""

from __future__ import annotations

from dataclasses import dataclass, replace


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


def sum_reports(one: PassReport, other: PassReport) -> PassReport:
    """What the same pass did to two parts of a model."""
    return replace(one, seconds=one.seconds + other.seconds, skipped=one.skipped or other.skipped)
