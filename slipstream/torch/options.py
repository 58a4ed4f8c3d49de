"""What `torch.compile(options=...)` may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from slipstream.errors import InputError
from slipstream.machine.target import DTYPES
from slipstream.session.budget import parse_duration


@dataclass(frozen=True)
class Options:
    """How graphs are compiled and tuned."""

    budget: str | float | None = None
    store: str | None = None
    dtype: str = "float32"
    threads: int | None = None
    max_shapes: int = 8

    @staticmethod
    def of(options: Mapping[str, Any] | None, mode: str | None) -> Options:
        """Options that make sense; else an `InputError` that says which are allowed."""
        if mode is not None:
            raise InputError(f'slipstream has no mode {mode!r}: leave it out; options={{"budget": "3m"}} tunes')
        given = dict(options or {})
        names = [option.name for option in fields(Options)]
        if unknown := sorted(set(given) - set(names)):
            raise InputError(f"slipstream has no option {unknown[0]!r}: it has {', '.join(names)}")
        if isinstance(given.get("store"), Path):
            given["store"] = str(given["store"])
        chosen = Options(**given)
        if chosen.budget is not None:
            parse_duration(chosen.budget, "the option 'budget'")
        if chosen.store is not None and not isinstance(chosen.store, str):
            raise InputError(f"the option 'store' has to be a path, not {chosen.store!r}")
        if chosen.dtype not in DTYPES:
            raise InputError(f"the option 'dtype' has to be one of {', '.join(DTYPES)} as text, not {chosen.dtype!r}")
        for name in ("threads", "max_shapes"):
            value = getattr(chosen, name)
            if (value is not None or name != "threads") and (type(value) is not int or value < 1):
                raise InputError(f"the option {name!r} has to be a whole number from 1, not {value!r}")
        return chosen
