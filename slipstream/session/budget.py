"""How long to tune: by the clock, by trials, until a latency, or until nothing improves any more."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from slipstream.errors import SlipstreamError
from slipstream.session.events import Left, Remaining, percent

if TYPE_CHECKING:
    from slipstream.store import SessionRecord, Store

BUDGET = "budget"  # the name under which the budget of a resumed session is kept

_UNITS = {"ms": 1e-3, "us": 1e-6, "\u03bcs": 1e-6, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|us|\u03bcs|min|s|m|h|d)?", re.IGNORECASE | re.ASCII)


class BudgetError(SlipstreamError):
    """A budget that cannot be understood or would allow nothing."""


def parse_duration(text: str | float, what: str = "a budget") -> float:
    """Seconds of `5m`, `1h30m`, `90s`, `20ms` or a bare number of seconds."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = float(text)
    else:
        compact = unicodedata.normalize("NFKC", str(text)).strip()  # one sign for micro, of two that look alike
        parts = list(_PART.finditer(compact))
        read = "".join(part.group(0) for part in parts)
        if not parts or read.replace(" ", "") != compact.replace(" ", ""):
            raise BudgetError(f"{what} of {text!r} makes no sense: write 5m, 1h30m, 90s or 20ms")
        if len(parts) > 1 and any(part.group(2) is None for part in parts):
            raise BudgetError(f"{what} of {text!r} makes no sense: every number needs a unit, as in 1h30m")
        seconds = sum(float(part.group(1)) * _UNITS[(part.group(2) or "s").lower()] for part in parts)
    if not (math.isfinite(seconds) and seconds > 0):
        raise BudgetError(f"{what} of {text!r} allows nothing: give a time above zero, such as 5m")
    return seconds


def parse_share(text: str | float, what: str) -> float:
    """0.02 of `2%`, `2 %` or 0.02."""
    written = str(text).strip()
    try:
        share = float(written.removesuffix("%")) / 100 if written.endswith("%") else float(written)
    except ValueError:
        raise BudgetError(f"{what} of {text!r} makes no sense: write 2% or 0.02") from None
    if isinstance(text, bool) or not 0 <= share < 1:
        raise BudgetError(f"{what} of {text!r} makes no sense: give a share from 0 to 1, such as 2% or 0.02")
    return share


@dataclass(frozen=True)
class Budget:
    """What may be used, in all, over every run of the session. Tuning ends with the first that is used up."""

    seconds: float | None = None
    trials: int | None = None
    until_latency: float | None = None
    until_gain_below: float | None = None

    @classmethod
    def of(
        cls,
        seconds: str | float | None = None,
        trials: int | None = None,
        until_latency: str | float | None = None,
        until_gain_below: str | float | None = None,
    ) -> Budget:
        if trials is not None and (isinstance(trials, bool) or not isinstance(trials, int) or trials < 1):
            raise BudgetError(f"a budget of {trials!r} trials allows nothing: give a whole number from 1")
        return cls(
            None if seconds is None else parse_duration(seconds),
            trials,
            None if until_latency is None else parse_duration(until_latency, "a latency"),
            None if until_gain_below is None else parse_share(until_gain_below, "a gain"),
        )

    def remaining(self, elapsed: float, trials: int, start: float, latency: float) -> Remaining:
        used = []
        if self.seconds is not None:
            used.append(elapsed / self.seconds)
        if self.trials is not None:
            used.append(trials / self.trials)
        if self.until_latency is not None and math.isfinite(start) and start > self.until_latency:
            used.append(math.log(start / max(latency, self.until_latency)) / math.log(start / self.until_latency))
        return Remaining(
            seconds=None if self.seconds is None else max(0.0, self.seconds - elapsed),
            trials=None if self.trials is None else max(0, self.trials - trials),
            until_latency=self.until_latency,
            until_gain_below=self.until_gain_below,
            fraction_used=min(1.0, max(used)) if used else None,
        )

    def spent(self, elapsed: float, trials: int, latency: float, left: Left | None = None) -> str | None:
        """Why tuning has to end, in words; None while it may go on."""
        if self.seconds is not None and elapsed >= self.seconds:
            return "the time is up"
        if self.trials is not None and trials >= self.trials:
            return "all trials are used"
        if self.until_latency is not None and latency <= self.until_latency:
            return "the wanted latency is reached"
        if self.until_gain_below is not None and left is not None and left.at_most < self.until_gain_below:
            return f"{left.described(2)}, less than the {percent(self.until_gain_below)} asked for"
        return None

    def to_json(self) -> dict[str, float | int | None]:
        return asdict(self)


def budget_of(store: Store, record: SessionRecord) -> Budget:
    """The budget a session has: the one given when it was last resumed, or else when it was begun."""
    resumed = store.state(record.id, BUDGET)
    return Budget(**(json.loads(resumed[1]) if resumed else record.options["budget"]))
