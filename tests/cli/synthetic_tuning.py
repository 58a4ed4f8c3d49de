"""A tuning session that only talks: the events and snapshots of one, at any pace, for the views to show.

To look at a view: python -m tests.cli.synthetic_tuning live 30 (mode, seconds, number of operators)
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from slipstream.cli.tune_result import render_result
from slipstream.cli.tune_view import make_view
from slipstream.session.events import Event, OperatorProgress, Remaining, Snapshot, Watcher

_SLOT_TRIALS = 16
_KINDS = ("conv2d 3x3", "conv2d 1x1", "depthwise_conv2d 5x5/2", "dense", "max_pool2d 3x3/2")
_FAILURES = ("build error", "run timeout", "wrong result")


def operator_rows(count: int, **changes: Any) -> list[OperatorProgress]:
    """`count` operators of falling importance, none timed yet."""
    rows = []
    for position in range(count):
        size = 32 * (1 + position % 8)
        name = f"{_KINDS[position % len(_KINDS)]} {size}→{2 * size} {56 // (1 + position % 4)}x56 + add + relu"
        settings = {"weight": 1 + position % 4, "start": math.inf, "best": math.inf, **changes}
        rows.append(OperatorProgress(f"op{position:04}", name, **settings))
    return rows


def new_snapshot(operators: list[OperatorProgress], **changes: Any) -> Snapshot:
    """A session about to start."""
    settings = {
        "session": "s1",
        "model": "resnet18",
        "target": "llvm -mcpu=cascadelake -num-cores=2",
        "phase": "prepare",
        "elapsed": 0.0,
        "remaining": Remaining(),
        "start_latency": math.inf,
        "latency": math.inf,
        "curve": [],
        **changes,
    }
    return Snapshot(operators=operators, **settings)


class SyntheticTuning:
    """Every operator gets a time, then slots go around and bring smaller and smaller gains."""

    def __init__(self, watcher: Watcher, operators: int, seconds: float = 60.0, pause: float = 0.0) -> None:
        self._watcher = watcher
        self._pause = pause
        self._seconds = seconds
        self._random = random.Random(0)
        self.snapshot = new_snapshot(operator_rows(operators), remaining=Remaining(seconds=seconds, fraction_used=0.0))

    def play(self, before_phase: Callable[[str], None] = lambda phase: None) -> Snapshot:
        """The whole session; `before_phase` may raise, as a session can."""
        snapshot = self.snapshot
        self._tell("started")
        phases = {"defaults": self._time_defaults, "tune": self._tune, "compile": self._wait, "verify": self._wait}
        for phase, work in phases.items():
            before_phase(phase)
            snapshot.phase, snapshot.doing = phase, ""
            self._tell("phase", phase=phase)
            work()
        snapshot.phase, snapshot.current = "done", None
        self._tell("finished")
        return snapshot

    def _tell(self, kind: str, advance: float = 0.0, **data: object) -> None:
        snapshot = self.snapshot
        snapshot.elapsed += advance
        snapshot.remaining.seconds = max(0.0, self._seconds - snapshot.elapsed)
        snapshot.remaining.fraction_used = min(1.0, snapshot.elapsed / self._seconds)
        self._watcher(Event(kind, snapshot.elapsed, data), snapshot)
        if self._pause:
            time.sleep(self._pause * advance)

    def _time_defaults(self) -> None:
        for position, row in enumerate(self.snapshot.operators):
            row.start = row.best = 2e-3 / (1 + position) ** 0.7
            self.snapshot.current = row.key
            self.snapshot.doing = f"timing {position + 1} of {len(self.snapshot.operators)}"
            self._tell("trial", 0.05)
        self.snapshot.start_latency = self._total()
        self._record()

    def _tune(self) -> None:
        snapshot = self.snapshot
        while snapshot.operators and snapshot.elapsed < 0.9 * self._seconds:
            row = min(snapshot.operators, key=lambda row: (row.slots + self._random.random()) / (row.weight * row.best))
            snapshot.slots += 1
            snapshot.current = row.key
            self._tell("slot", operator=row.key)
            for trial in range(_SLOT_TRIALS):
                self._try(row, trial)
            row.slots += 1
            row.recent.append(row.best)
            row.finished = row.slots > 12
            self._tell("slot_done", operator=row.key)

    def _try(self, row: OperatorProgress, trial: int) -> None:
        snapshot = self.snapshot
        snapshot.trials += 1
        row.trials += 1
        snapshot.doing = f"timing {trial + 1} of {_SLOT_TRIALS} of {row.name}"
        self._tell("trial", self._seconds / 1000, operator=row.key)
        if self._random.random() < 0.03:
            kind = self._random.choice(_FAILURES)
            row.failures += 1
            snapshot.failures[kind] = snapshot.failures.get(kind, 0) + 1
        if self._random.random() < 0.3 / (1 + row.slots):
            row.best *= 1 - 0.2 * self._random.random() / (1 + row.slots)
            self._record()
            self._tell("improved", operator=row.key)

    def _total(self) -> float:
        return sum(row.weight * row.best for row in self.snapshot.operators)

    def _record(self) -> None:
        self.snapshot.latency = self._total()
        self.snapshot.curve.append((self.snapshot.elapsed, self.snapshot.latency))

    def _wait(self) -> None:
        self._tell("trial", self._seconds / 20)


def main(mode: Any = "auto", seconds: str = "30", operators: str = "21") -> None:
    """Play a session on this terminal."""
    from rich.console import Console

    try:
        with make_view(mode) as view:
            snapshot = SyntheticTuning(view, int(operators), float(seconds), pause=1.0).play()
    except KeyboardInterrupt:
        sys.exit("interrupted")
    Console().print(render_result(snapshot, 1.04 * snapshot.latency))


if __name__ == "__main__":
    main(*sys.argv[1:])
