"""One operator of a session: its space of programs, and which of them have been measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slipstream.graph.operators import Operator
from slipstream.measure.reference import reference_text
from slipstream.program.space import Program, Space
from slipstream.search.types import Measured
from slipstream.store import OperatorRecord


def operator_record(operator: Operator) -> OperatorRecord:
    """An operator as the store has it."""
    o = operator
    return OperatorRecord(o.key, o.name, o.kinds, o.flops, o.bytes, o.shapes, reference_text(o.func))


@dataclass
class OperatorTrials:
    """`measured` has the best result of every program by its identity; infinite if it does not work."""

    operator: Operator
    space: Space
    measured: dict[tuple[str, Any], Measured] = field(default_factory=dict)

    def add(self, program: Program, seconds: float, slot: int) -> None:
        known = self.measured.get(program.identity)
        if known is None or seconds < known.seconds:
            self.measured[program.identity] = Measured(program, seconds, slot)

    def known(self) -> list[Measured]:
        return list(self.measured.values())
