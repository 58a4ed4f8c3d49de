"""Whether the operators that are called similar are the useful ones, on the package's priors (seconds).

For two operators with programs of one signature, trees are fitted on the measurements of one and rank the programs of
the other; the rank correlation with their times is how useful the first is to the second. For every operator the
others are ordered by similarity: by the doublings between extents, as `slipstream/diffusion/similarity.py` has it, and
by the cosine of extents, as published. Reported are the rank correlation of similarity and usefulness over the others,
and the usefulness of the two most similar; means over operators. Nothing is measured: `--priors` names another file.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.runner import run
from benchmarks.spread import rank_correlation, table
from slipstream.diffusion.distilled import SHIPPED, ClassPriors, TunedProgram, read_priors
from slipstream.diffusion.guess import Guess, Rows
from slipstream.diffusion.similarity import doublings
from slipstream.program.decisions import Points, tile_extents

QUICK = {"most": 6}
_FEWEST_PROGRAMS = 12
_FEWEST_OTHERS = 4
_NEAREST = 2


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--priors", type=Path, default=SHIPPED, help="a file of 'slipstream store distil'")
    parser.add_argument("--most", type=int, default=1000, help="operators of a signature, type and machine")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for name, known in read_priors(options.priors).items():
        yield name, [row for group in groups_of(known) for row in _judge(group[: options.most], options.seed)]


Operator = tuple[str, Points, tuple[TunedProgram, ...]]


def groups_of(known: ClassPriors) -> list[list[Operator]]:
    """Operators with enough programs, by signature, type and machine."""
    found: dict[tuple[str, str, str], list[Operator]] = {}
    for one in known.operators:
        for name in sorted({program.signature for program in one.programs}):
            programs = tuple(p for p in one.programs if p.signature == name)
            if len(programs) >= _FEWEST_PROGRAMS and math.isfinite(programs[0].seconds):
                points = known.sketches[name].points(programs[0].decisions)
                if tile_extents(points):
                    found.setdefault((name, one.dtype, one.machine), []).append((one.name, points, programs))
    return list(found.values())


def _judge(group: Sequence[Operator], seed: int) -> Iterator[dict[str, Any]]:
    if len(group) <= _FEWEST_OTHERS:
        return
    guesses = [Guess.fit([_rows(points, programs)], seed) for _, points, programs in group]
    extents = [tile_extents(points) for _, points, _ in group]
    for n, (name, points, programs) in enumerate(group):
        others = [m for m in range(len(group)) if m != n and guesses[m] is not None]
        speeds = [-p.seconds for p in programs]
        decisions = [p.decisions for p in programs]
        useful, by_doublings, by_cosine = [], [], []
        for m in others:
            guess = guesses[m]
            assert guess is not None
            useful.append(correlation(guess.score(points, decisions).tolist(), speeds))
            by_doublings.append(-doublings(extents[n], extents[m]))
            by_cosine.append(_cosine(extents[n], extents[m]))
        if len(others) >= _FEWEST_OTHERS:
            yield {
                "operator": name,
                "others": len(others),
                "mean": round(fmean(useful), 4),
                "doublings": _told(useful, by_doublings),
                "cosine": _told(useful, by_cosine),
            }


def _rows(points: Points, programs: Sequence[TunedProgram]) -> Rows:
    return Rows(points, [p.decisions for p in programs], [p.seconds for p in programs], own=False)


def _told(useful: Sequence[float], similar: Sequence[float]) -> dict[str, float]:
    nearest = sorted(range(len(useful)), key=lambda m: -similar[m])[:_NEAREST]
    return {
        "correlation": round(correlation(similar, useful), 4),
        "nearest": round(fmean(useful[m] for m in nearest), 4),
    }


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Of ranks; 0 where one of them is constant."""
    found = rank_correlation(a, b)
    return 0.0 if math.isnan(found) else found


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found = {"mean": fmean(row["mean"] for row in rows)}
    for how in ("doublings", "cosine"):
        found |= {f"{how}: {what}": fmean(row[how][what] for row in rows) for what in ("correlation", "nearest")}
    return found


def numbers(data: dict[str, Any]) -> dict[str, str]:
    return {
        f"{name}: {key}": f"{value:.2f}" for name, rows in data.items() if rows for key, value in _means(rows).items()
    }


def markdown(data: dict[str, Any]) -> str:
    rows = []
    for name, judged in data.items():
        if judged:
            means = _means(judged)
            columns = ("doublings: correlation", "cosine: correlation", "doublings: nearest", "cosine: nearest", "mean")
            rows.append([name, str(len(judged)), *(f"{means[column]:.2f}" for column in columns)])
    head = ["hardware", "operators", "doublings go with usefulness", "cosine does"]
    head += ["usefulness of the two nearest by doublings", "by cosine", "of any other"]
    return "\n".join([*table(head, rows), ""])


if __name__ == "__main__":
    run(__name__)
