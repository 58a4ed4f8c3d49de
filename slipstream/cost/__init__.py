"""Cost models by name: which programs look fast before they are measured. The contract is in `types.py`."""

from __future__ import annotations

from slipstream.cost.types import CostModel, CostModelError, Example, Features

__all__ = ["NAMES", "CostModel", "CostModelError", "Example", "Features", "make"]

NAMES = ("incremental", "metaschedule", "random")


def make(name: str, *, seed: int, threads: int) -> CostModel:
    """The cost model called `name` (see `NAMES`), with nothing learned yet. It trains on `threads` threads."""
    if name == "incremental":
        from slipstream.cost.incremental import Incremental

        return Incremental(seed, threads)
    if name == "metaschedule":
        from slipstream.cost.metaschedule import MetaSchedule

        return MetaSchedule(seed, threads)
    if name == "random":
        from slipstream.cost.random import Random

        return Random(seed)
    raise CostModelError(f"there is no cost model {name!r}; choose one of {', '.join(NAMES)}")
