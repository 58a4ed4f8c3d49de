"""What a session's scheduler, search, cost model and measurer are made from."""

from __future__ import annotations

from typing import Any

from slipstream.plugins import Context
from slipstream.session.settings import Settings


def context_of(settings: Settings, peak_flops: float, **others: Any) -> Context:
    """Of a session with these settings; `others` are further fields of `Context`."""
    return Context(
        seed=settings.seed,
        slot_trials=settings.slot_trials,
        peak_flops=peak_flops,
        parts=settings.parts,
        population=settings.population,
        generations=settings.generations,
        evaluation=settings.evaluation,
        **others,
    )
