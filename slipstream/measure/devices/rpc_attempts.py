"""What to conclude when remote devices fail while they run a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream.measure.types import Failure, FailureKind

_TO_BE_SURE = 2


class Mishap(StrEnum):
    """How a device failed while it had a program."""

    BROKE = "the connection broke"
    TOO_LONG = "the run took too long"
    STALLED = "the server stopped answering"


@dataclass(frozen=True)
class Attempt:
    """What happened, on which server, and the client's error message."""

    mishap: Mishap
    address: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.mishap} on {self.address}"


def conclude(attempts: Sequence[Attempt], limit: int) -> Failure | None:
    """Why a program has failed after these attempts, or None if it is to be tried again.

    A server that ends and a program that ends its server look the same from here, as do a server that stands still
    and a program that never ends. What happens twice is attributed to the program.
    """
    story = "; ".join(str(attempt) for attempt in attempts)
    messages = "\n".join(attempt.message for attempt in attempts if attempt.message)
    for mishap, kind, meaning in (
        (Mishap.BROKE, FailureKind.CRASH, "it crashes"),
        (Mishap.TOO_LONG, FailureKind.RUN_TIMEOUT, "it takes too long"),
    ):
        if sum(attempt.mishap is mishap for attempt in attempts) >= _TO_BE_SURE:
            return Failure(kind, f"{meaning}: {story}", messages)
    if len(attempts) >= limit:
        return Failure(FailureKind.DEVICE_LOST, f"given up after {len(attempts)} attempts: {story}", messages)
    return None
