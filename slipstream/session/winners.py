"""Which program of each operator goes into the model: near-ties are timed again, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.measure.types import Candidate, Measurement
from slipstream.program.space import Program
from slipstream.session.loop import Session

_NEAR = 0.05
_MOST_FINALISTS = 3


def best_programs(session: Session) -> dict[str, Program]:
    """The fastest program measured of each operator that could be measured at all."""
    winners = {}
    for key, trials in session.operators.items():
        known = [m for m in trials.known() if math.isfinite(m.seconds)]
        if known:
            winners[key] = min(known, key=lambda m: m.seconds).program
    return winners


def settle_near_ties(
    session: Session,
    measurer: Any,
    winners: dict[str, Program],
    seconds: float,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Let an operator's default program and those within 5 % of its best race again, where most is at stake first.

    A best of many noisy measurements is partly luck. Where no time is left to race, or `stop` says so, also in the
    middle of a race, a default program within 5 % of the best stays. Changes `winners`; the number of operators whose
    race was decided.
    """
    settle = getattr(measurer, "settle", None)
    deadline = session.elapsed + seconds

    def enough() -> bool:
        return session.elapsed >= deadline or stop()

    rng = np.random.default_rng(session.settings.seed)
    decided = 0
    operators = session.history.operators.values()
    for operator in sorted(operators, key=lambda o: -o.latency if math.isfinite(o.latency) else 0):
        default = _near_default(session, operator.key)
        if settle is None or enough():
            if default is not None:
                winners[operator.key] = default
            continue
        finalists = _finalists(session, operator.key)
        if len(finalists) < 2:
            continue
        session.snapshot.doing = f"comparing {len(finalists)} near-ties of {operator.name}"
        settled = settle([measurement for measurement, _ in finalists], rng, enough=enough)
        if settled is not None and not settled.decided and enough() and default is not None:
            winners[operator.key] = default
        elif settled is not None:
            winners[operator.key] = finalists[int(settled.winner.program.label)][1]
            decided += 1
    return decided


def _near_default(session: Session, key: str) -> Program | None:
    """The operator's default program, if what was found is hardly faster."""
    known = [m for m in session.operators[key].known() if math.isfinite(m.seconds)]
    best = min((m.seconds for m in known), default=math.inf)
    near = (m.program for m in known if m.seconds <= best * (1 + _NEAR))
    return next((program for program in near if program.origin == "default"), None)


def _finalists(session: Session, key: str) -> list[tuple[Measurement, Program]]:
    """Who races: the fastest few, and the default program in any case, however slow one measurement of it was; nobody
    where there is one program alone."""
    trials = session.operators[key]
    known = sorted((m for m in trials.known() if math.isfinite(m.seconds)), key=lambda m: m.seconds)
    near = [m for m in known if m.seconds <= known[0].seconds * (1 + _NEAR)][:_MOST_FINALISTS]
    near += [m for m in known if m.program.origin == "default" and m not in near][:1]
    if len(near) < 2:
        return []
    realized = [(m, r) for m in near if (r := trials.space.realize(m.program)) is not None]
    # All count as equal here: how fast they are is what the race measures.
    return [
        (Measurement(Candidate(key, r.text, str(n)), samples=(known[0].seconds,)), m.program)
        for n, (m, r) in enumerate(realized)
    ]
