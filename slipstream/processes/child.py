"""What every process that we start gets: the packages this one sees, and an end when its parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PACKAGE_ROOT = str(Path(__file__).parents[2])
_PR_SET_PDEATHSIG = 1


def child_environment(**changes: str) -> dict[str, str]:
    """The environment for a child that is to import the very packages this process imports, with `changes`."""
    paths = [entry or os.getcwd() for entry in sys.path]
    if _PACKAGE_ROOT not in paths:
        paths.append(_PACKAGE_ROOT)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", **changes}


def die_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGKILL) -> bool:
    """Have the kernel send this process `number` when its parent ends; False if `parent` has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    return parent is None or os.getppid() == parent
