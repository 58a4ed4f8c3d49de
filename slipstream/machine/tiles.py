"""Permission to use tile registers (AMX), which Linux gives a process, its threads and its forks, if asked.

They are eight kilobytes of state that the kernel has to save for each thread that uses them.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18


@cache
def allow_tiles() -> bool:
    """Ask for it; False where the kernel is older than 5.16 or refuses, or there is nothing to ask for."""
    if platform.machine() != "x86_64":
        return False
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    arguments = (ctypes.c_long(number) for number in (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))
    return int(system_call(*arguments)) == 0
