"""Slots in proportion to FLOPs: a static policy of DynaTune's section 5.2."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.schedulers.eligible import highest, unfinished
from slipstream.schedulers.types import OperatorState


class Linear:
    """Gives the slot to the operator that is furthest behind its share of the model's arithmetic (D'Hondt's rule)."""

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        candidates = unfinished(operators)
        if not candidates:
            return None
        # An operator that only moves data counts as one FLOP, so that it gets slots too.
        return highest(candidates, lambda o: max(o.weight * o.flops, 1) / (o.slots + 1)).key
