"""Random search: a random sketch, then random decisions. The baseline of the other searches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slipstream.program.decisions import IllegalDecisionError
from slipstream.program.space import Realized
from slipstream.search.types import Question

_ATTEMPTS_EACH = 20


class Random:
    """Draws from all sketches of the operator with equal probability."""

    uses_score = False

    def propose(self, question: Question) -> list[Realized]:
        space, rng = question.space, np.random.default_rng(question.seed)
        if not space.sketches:
            return []
        known = {measured.program.identity for measured in question.measured}
        found: list[Realized] = []
        for _ in range(_ATTEMPTS_EACH * question.count):
            if len(found) == question.count:
                break
            program = replace(space.draw(rng), origin="random")
            try:
                space.check(program)
            except IllegalDecisionError:
                continue
            realized = space.realize(program)
            if realized is not None and realized.program.identity not in known:
                known.add(realized.program.identity)
                found.append(realized)
        return found
