"""A median and how far the values lie apart, as a cell of a table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np


def with_quartiles(values: Sequence[float], digits: int = 3) -> str:
    low, high = np.quantile(values, [0.25, 0.75])
    return _cell(values, low, high, digits)


def with_range(values: Sequence[float], digits: int = 3) -> str:
    return _cell(values, min(values), max(values), digits)


def _cell(values: Sequence[float], low: float, high: float, digits: int) -> str:
    middle = f"{median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({low:.{digits}f} - {high:.{digits}f})"
