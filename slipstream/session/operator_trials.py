"""One operator of a session: its space of programs, and what has been measured in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from slipstream.graph.operators import Operator
from slipstream.program.space import Program, Space
from slipstream.search.types import Measured


@dataclass
class Room:
    operator: Operator
    space: Space
    measured: dict[tuple[str, Any], Measured] = field(default_factory=dict)

    def note(self, program: Program, seconds: float, slot: int) -> None:
        known = self.measured.get(program.identity)
        if known is None or seconds < known.seconds:
            self.measured[program.identity] = Measured(program, seconds, slot)

    def known(self) -> list[Measured]:
        return list(self.measured.values())

    def seconds(self, program: Program) -> float:
        known = self.measured.get(program.identity)
        return known.seconds if known else math.inf
