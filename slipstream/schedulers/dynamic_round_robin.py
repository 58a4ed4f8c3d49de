"""Dynamic allocation in circular order, without a belief: DynaTune's section 5.3."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.schedulers.eligible import fewest_slots, unfinished, without_measurement
from slipstream.schedulers.types import OperatorState


class DynamicRoundRobin:
    """Shares the slots of finished operators evenly among the rest, those without a measurement first."""

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        left = unfinished(operators)
        candidates = without_measurement(left) or left
        return fewest_slots(candidates).key if candidates else None
