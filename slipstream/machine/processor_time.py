"""How much processor time the control groups of this process allow it, as a container's or a service's limit."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import cache
from pathlib import Path

from slipstream.machine.mounts import Mount, mounts

_PROCESS = Path("/proc/self")


def processor_time(process: Path = _PROCESS) -> float:
    """Cores whose whole time the process may use: the least of its group and of all groups around it."""
    return min((_limit(group) for group in _groups(process)), default=math.inf)


@cache
def _groups(process: Path) -> tuple[Path, ...]:
    """The folders of the process's groups of both versions, and of those around them as far as they can be seen.

    Looked up once: it takes a millisecond, and a model's call asks for its threads.
    """
    found = list[Path]()
    with suppress(OSError, ValueError):
        places = {}
        for line in (process / "cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                places["cgroup" if controllers else "cgroup2"] = place
        for mount in mounts(process / "mountinfo"):
            if mount.kind in places and (mount.kind == "cgroup2" or "cpu" in mount.options):
                found += _upwards(mount, places[mount.kind])
    return tuple(found)


def _upwards(mount: Mount, place: str) -> list[Path]:
    top = Path(mount.place)
    # In a container the top is often the group itself, while its place is told as seen from outside.
    inside = place.removeprefix(mount.root.rstrip("/")) if place.startswith(mount.root) else "/"
    folder = top / inside.lstrip("/")
    return [each for each in (folder, *folder.parents) if each.is_relative_to(top) and ".." not in each.parts]


def _limit(group: Path) -> float:
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (group / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        allowed, every = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return allowed / every if allowed > 0 else math.inf
    return math.inf
