"""Change points of a tuning curve: after a jump only the later part is fitted (DynaTune, section 4.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# The paper's relative improvement in one step that starts a new segment.
JUMP = 0.2


def segments(performance: NDArray[np.float64]) -> list[int]:
    """Start indices of the segments of a never falling curve: a step up by more than `JUMP` starts a new one.

    The step from nothing (0) to the first valid measurement starts one too.
    """
    before, after = performance[:-1], performance[1:]
    return [0, *(np.flatnonzero(after > (1 + JUMP) * before) + 1).tolist()]


def last_segment(performance: NDArray[np.float64]) -> int:
    """Start index of the segment that the forecast is fitted to."""
    return segments(performance)[-1]
