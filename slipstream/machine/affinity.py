"""On which cores a thread runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress


def stay_on(cores: Iterable[int]) -> None:
    """Confine this thread to `cores`, and those that it starts; where a container forbids it, leave it where it is."""
    with suppress(OSError):
        os.sched_setaffinity(0, cores)
