"""What is mounted where, as the kernel tells a process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Mount:
    """`root` is the folder of the file system that is at `place`; `options` are the mount's and the file system's."""

    root: str
    place: str
    kind: str
    options: frozenset[str]


def mounts(file: Path = _MOUNTS) -> Iterator[Mount]:
    """All mounts, in their order; raises OSError or ValueError where they cannot be read."""
    for line in file.read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, place, options, *_ = before.split(" ")
        kind, _, more = after.split(" ", 2)
        yield Mount(_plain(root), _plain(place), kind, frozenset([*options.split(","), *more.split(",")]))


def is_noexec(path: Path) -> bool:
    """Whether no code can be loaded from `path`, or from where it would be: its file system is mounted so."""
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return bool(os.statvfs(existing).f_flag & os.ST_NOEXEC)


def _plain(path: str) -> str:
    """Spaces and the like are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)
