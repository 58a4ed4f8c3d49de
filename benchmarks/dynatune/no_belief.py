"""A policy without a belief, for the ablation: gains are assumed to fall with the number of slots."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.schedulers.eligible import fewest_slots, highest, unfinished, without_measurement
from slipstream.schedulers.types import OperatorState


class NoBelief:
    """Picks the highest latency / (slots + 1)."""

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        candidates = unfinished(operators)
        if not candidates:
            return None
        if cold := without_measurement(candidates):
            return fewest_slots(cold).key
        return highest(candidates, lambda o: o.latency / (o.slots + 1)).key
