"""Formatting of figures and names for people: `412 µs`, `4:19`, `1.32x`."""

from __future__ import annotations

import math

UNKNOWN = "-"
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def latency(seconds: float, digits: int = 3) -> str:
    """A time with its unit, to `digits` significant digits; `-` if it is not known."""
    if not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN
    for unit, scale in _UNITS:
        value = float(f"{seconds / scale:.{digits}g}")
        if value >= 1:
            return f"{value:.{max(0, digits - len(str(int(value))))}f} {unit}"
    return "0 ms" if seconds == 0 else f"{value:.{digits}g} {unit}"


def duration(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any: `4:19`, `1:04:19`."""
    if not math.isfinite(seconds):
        return UNKNOWN
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def speedup(before: float, after: float) -> float | None:
    """How many times as fast `after` is; None where that means nothing."""
    if not (math.isfinite(before) and math.isfinite(after)) or before <= 0 or after <= 0:
        return None
    return before / after


def factor(before: float, after: float) -> str:
    """`speedup` in words: `1.32x`."""
    times = speedup(before, after)
    if times is None:
        return UNKNOWN
    return f"{times:.2f}x" if times < 99.5 else f"{times:.0f}x"


def one_line(text: str) -> str:
    """`text` without anything that would move a cursor or break a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
