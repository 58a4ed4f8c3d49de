"""Plots made of characters: a curve in braille dots, a trend in blocks, a bar."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉"
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column, then by row, as Unicode numbers them
_SMALLEST_RANGE = 0.02  # of the value: below it a trend is drawn flatter, so that noise does not look like a gain


def curve(points: Sequence[tuple[float, float]], until: float, width: int, height: int) -> list[str]:
    """`height` lines of `width` characters: the steps through `points` from time 0 to `until`, highest value on top."""
    levels = _levels(points, until, 2 * width)
    known = [level for level in levels if level is not None]
    high, low = max(known, default=0.0), min(known, default=0.0)
    last_row = 4 * height - 1
    cells = [[0] * width for _ in range(height)]
    previous: int | None = None
    for column, level in enumerate(levels):
        if level is None:
            continue
        row = round((high - level) / (high - low) * last_row) if high > low else last_row // 2
        start = row if previous is None else previous
        for dot in range(min(start, row), max(start, row) + 1):
            cells[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
        previous = row
    return ["".join(chr(_BRAILLE | dots) if dots else " " for dots in line) for line in cells]


def _levels(points: Sequence[tuple[float, float]], until: float, columns: int) -> list[float | None]:
    """The value at the end of each of `columns` equal stretches of time; None before the first finite one."""
    levels: list[float | None] = []
    level: float | None = None
    position = 0
    for column in range(1, columns + 1):
        end = math.inf if column == columns else until * column / columns
        while position < len(points) and points[position][0] <= end:
            if math.isfinite(points[position][1]):
                level = points[position][1]
            position += 1
        levels.append(level)
    return levels


def trend(values: Sequence[float], width: int) -> str:
    """The last `width` values as blocks of different heights; a blank for one that is not finite."""
    values = values[-width:]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    low, high = min(finite), max(finite)
    scale = (len(_BLOCKS) - 1) / max(high - low, _SMALLEST_RANGE * abs(high), 1e-30)
    return "".join(_BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)


def bar(fraction: float, width: int) -> str:
    """A bar of `width` characters, exact to an eighth of one."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_PARTS[part] if part else "")).ljust(width)
