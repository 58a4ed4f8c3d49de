"""Between what the loop holds in memory and what it writes into the store."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

from slipstream.program.decisions import to_json
from slipstream.store.records import ProgramRecord, SlotRecord, TrialRecord

if TYPE_CHECKING:
    from slipstream.measure.types import Measurement
    from slipstream.program.space import Program

# The note of the slots that measure what is known before tuning.
DEFAULTS: dict[str, Any] = {"phase": "default"}
# In the note of a slot whose search crashed: how.
LOST = "lost"


def is_default(slot: SlotRecord) -> bool:
    """Whether the slot measured an operator's default program, and what the store knew of it."""
    return bool(slot.note == DEFAULTS)


def slot_seed(seed: int, key: str, slot: int) -> int:
    digest = hashlib.blake2b(f"{seed}:{key}:{slot}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def record_of(program: Program) -> ProgramRecord:
    return ProgramRecord(program.sketch.digest, to_json(program.decisions), program.origin)


def trial_of(
    measurement: Measurement, program: Program, hardware: str, session: str, slot: int, position: int
) -> TrialRecord:
    failure = measurement.failure
    return TrialRecord(
        operator=program.operator,
        hardware=hardware,
        program=record_of(program),
        samples=measurement.samples,
        failure=failure.kind.value if failure else None,
        message=failure.message if failure else "",
        stopped_early=measurement.stopped_early,
        noisy=measurement.noisy,
        verified=measurement.verified,
        duplicate=measurement.duplicate,
        build_seconds=measurement.build_seconds,
        run_seconds=measurement.run_seconds,
        overhead_seconds=measurement.overhead_seconds,
        measured_at=measurement.started_at,
        session=session,
        slot=slot,
        position=position,
    )


def finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
