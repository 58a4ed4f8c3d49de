"""How much memory and disk a long session takes, by trials (20 minutes).

A session with the default scheduler on the operators of MobileNet v2, in one process, with a simulated measurer:
programs are proposed and stored as usual, but not built or run, which other processes do. Once with the default search,
for --seconds; and once with random decisions that are not replayed, which allows tens of thousands of trials. Other
load on the machine affects the seconds only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from benchmarks.runner import run

MARKS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
SEARCHES = ("diffusion", "drawn")
_NO_END = 10**9
_ATTEMPTS = 20
QUICK = {"model": "tiny_cnn", "trials": 200, "searches": ["diffusion"]}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--trials", type=int, default=50_000)
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=SEARCHES)
    parser.add_argument("--seconds", type=float, default=600.0, help="after which a session ends, whatever the trials")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for search in options.searches:
        # A new process, so that a session's memory does not include that of another.
        with get_context("spawn").Pool(1) as pool:
            yield search, pool.apply(run_session, (search, options))


class Points:
    """Watches a session and notes what it takes at every mark."""

    def __init__(self, marks: Sequence[int], store: Path) -> None:
        self.marks, self.store, self.began, self.start = marks, store, time.monotonic(), resident()
        self.trials, self.found = 0, list[dict[str, float]]()

    def __call__(self, event: Any, snapshot: Any) -> None:
        if event.kind == "started":
            self.start, self.began = resident(), time.monotonic()
        self.trials += event.kind == "trial"
        if len(self.found) < len(self.marks) and self.trials >= self.marks[len(self.found)]:
            self.look()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def look(self) -> None:
        taken = {"mb": resident(), "store_mb": self.store.stat().st_size / 1e6}
        self.found.append({"trials": self.trials, "seconds": self.seconds, **taken})


def resident() -> float:
    """Megabytes of this process in memory."""
    return psutil.Process().memory_info().rss / 1e6


class RandomDecisions:
    """Proposes decisions at random, with the default program's text: what a session keeps of a program is the same."""

    uses_score = False

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def propose(self, question: Any) -> list[Any]:
        from slipstream.program.space import Realized

        space, rng = question.space, np.random.default_rng(question.seed)
        known = {measured.program.identity for measured in question.measured}
        text, found = self._text(space), list[Any]()
        for _ in range(_ATTEMPTS * question.count if space.sketches else 0):
            program = space.draw(rng)
            if len(found) < question.count and program.identity not in known:
                known.add(program.identity)
                found.append(Realized(program, space.mod))
                found[-1].__dict__["text"] = text  # or every one would be written out anew
        return found

    def _text(self, space: Any) -> str:
        from slipstream.program.space import Realized

        if space.key not in self._texts:
            self._texts[space.key] = Realized(space.default, space.mod).text
        return self._texts[space.key]


def run_session(search: str, options: argparse.Namespace) -> dict[str, Any]:
    import slipstream
    from slipstream.testing.measurer import SyntheticMeasurer

    class DiscardingMeasurer(SyntheticMeasurer):
        """Keeps no program, as the real measurers do."""

        def measure(self, programs: Any) -> Iterator[Any]:
            for measurement in super().measure(programs):
                self.measured.clear()
                yield measurement

    marks = [mark for mark in MARKS if mark < options.trials] + [options.trials]
    with TemporaryDirectory(dir=options.work) as folder:
        points = Points(marks, Path(folder, "session", "store.db"))
        result = slipstream.tune(
            f"zoo:{options.model}",
            Path(folder, "session"),
            budget=options.seconds,
            trials=options.trials,
            search=RandomDecisions() if search == "drawn" else search,
            measurer=DiscardingMeasurer(),
            seed=options.seed,
            settings={"patience_trials": _NO_END},
            callbacks=[points],
        )
        if points.trials < options.trials:
            points.look()
    found = {"operators": len(result.operators), "start_mb": points.start, "ended": result.reason}
    return {**found, "points": points.found}


def markdown(data: Mapping[str, Any]) -> str:
    lines = ["| search | after trials | resident memory, MB | store, MB | ms a trial since the line above |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for search, result in data.items():
        lines.append(f"| {search} | 0 | {result['start_mb']:.0f} | | |")
        trials, seconds = 0.0, 0.0
        for point in result["points"]:
            each = 1e3 * (point["seconds"] - seconds) / (point["trials"] - trials)
            cells = [f"{point['trials']:,.0f}", f"{point['mb']:.0f}", f"{point['store_mb']:.1f}", f"{each:.1f}"]
            lines.append(f"| | {' | '.join(cells)} |")
            trials, seconds = point["trials"], point["seconds"]
    return "\n".join(lines) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for search, result in data.items():
        first, last = result["points"][0], result["points"][-1]
        more = 1e3 * (last["mb"] - first["mb"]) / max(last["trials"] - first["trials"], 1)
        found[f"{search}: KB a trial"] = f"{more:.1f}"
    return found


if __name__ == "__main__":
    run(__name__)
