"""Operators that the artifact's best programs compute faster than ours, or slower, from the raw results alone.

The sides name and fuse operators differently. Those with as many FLOPs, which both call as often, are the same work: a
convolution with its bias is found in both, whatever else was fused to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.originals.settings import SIDES

_SAME = 1.03  # FLOPs of an epilogue differ
_FEWEST_FLOPS = 1e6


@dataclass(frozen=True)
class Work:
    """The same operators of both: `calls` in one run of the model, and seconds of all of them."""

    names: tuple[str, ...]
    flops: float
    calls: float
    ours: float
    theirs: float

    @property
    def loss(self) -> float:
        """Seconds of one run of the model that theirs would save."""
        return self.ours - self.theirs


Task = Mapping[str, Any]


def same_work(result: Mapping[str, Any], side: str) -> list[Work]:
    """What both have measured, the largest loss first; the best of all seeds of either side."""
    ours = _best(run for run in result["runs"].values() if run["side"] == side)
    theirs = _best(run for run in result["runs"].values() if run["side"] in SIDES)
    groups: list[tuple[list[Task], list[Task]]] = []
    least = 0.0
    for task in sorted([*ours, *theirs], key=lambda task: float(task["flops"])):
        if not groups or task["flops"] > _SAME * least:
            groups.append(([], []))
            least = task["flops"]
        groups[-1][task not in ours].append(task)
    found = [work for group in groups if (work := _work(*group)) is not None]
    return sorted(found, key=lambda work: -work.loss)


def _best(runs: Iterable[Mapping[str, Any]]) -> list[Task]:
    """Every operator with enough to compute that had a program, at its best."""
    tasks = [task for run in runs for task in run.get("tasks", [])]
    measured = [task for task in tasks if task["seconds"] is not None and task["flops"] >= _FEWEST_FLOPS]
    return list({task["name"]: task for task in sorted(measured, key=lambda task: -task["seconds"])}.values())


def _work(ours: list[Task], theirs: list[Task]) -> Work | None:
    calls = [sum(task["weight"] for task in side) for side in (ours, theirs)]
    if not ours or calls[0] != calls[1]:
        return None
    seconds = [sum(task["weight"] * task["seconds"] for task in side) for side in (ours, theirs)]
    return Work(tuple(task["name"] for task in ours), ours[0]["flops"], calls[0], *seconds)
