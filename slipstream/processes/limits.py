"""Limits that the kernel enforces on a process of ours."""

from __future__ import annotations

import resource

_RESIDENT, _DATA = 1, 5  # columns of /proc/self/statm


def limit(what: int, most: int) -> None:
    """Set a limit for this process and all it starts, as far as the one it has allows."""
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def limit_memory(more_bytes: int) -> None:
    """Let allocations fail that come to `more_bytes` on top of what this process has."""
    limit(resource.RLIMIT_DATA, _statm_bytes(_DATA) + more_bytes)


def resident_bytes() -> int:
    """What this process has in memory."""
    return _statm_bytes(_RESIDENT)


def _statm_bytes(column: int) -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[column]) * resource.getpagesize()
