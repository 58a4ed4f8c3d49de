"""One operator after the other, each until it is finished: AutoTVM's order, the baseline of DynaTune's section 5.1."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.schedulers.eligible import unfinished
from slipstream.schedulers.types import OperatorState


class Sequential:
    """Picks the first operator that is not finished."""

    def pick(self, operators: Sequence[OperatorState], slot: int) -> str | None:
        return next((operator.key for operator in unfinished(operators)), None)
