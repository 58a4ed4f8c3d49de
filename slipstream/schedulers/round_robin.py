"""Slots in circular order, planned in advance: a static policy of DynaTune's section 5.2."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.schedulers.eligible import next_unfinished
from slipstream.schedulers.types import OperatorState


class RoundRobin:
    """Slot number i belongs to operator i modulo their number; if it is finished, the next one gets the slot."""

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        owner = next_unfinished(operators, slot)
        return owner.key if owner else None
