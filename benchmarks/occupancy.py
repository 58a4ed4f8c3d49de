"""Whether trees rank programs better if they are told how these fill a GPU, on the package's priors (a minute).

Trees are fitted to the programs of all other operators of a signature, and to some of an operator's own, as a search
does (`slipstream/diffusion/guess.py`), and rank the operator's other programs: with single decisions alone, and with
what these make together: blocks, threads, sums, what a multiprocessor holds at a time. Operators of the same name count
as one. Reported are the rank correlation of prediction and speed, and the speed of the faster of the two programs
ranked highest, relative to the fastest; means over operators. Nothing is measured: `--priors` names another file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np

from benchmarks.runner import run
from benchmarks.similarity import Operator, correlation, groups_of
from benchmarks.spread import table
from slipstream.diffusion.distilled import SHIPPED, ClassPriors, TunedProgram, read_priors
from slipstream.diffusion.guess import Describe, Guess, Rows
from slipstream.diffusion.signature import signature
from slipstream.machine.target import resolve_target

QUICK = {"most": 6, "seeds": 1}
_OWN = (0, 8)
_PICKED = 2
_FEWEST_TO_RANK = 12
_FEWEST_OTHERS = 4
_SLOWEST = 0.05  # of the fastest; failures count as that


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--priors", type=Path, default=SHIPPED, help="a file of 'slipstream store distil'")
    parser.add_argument("--most", type=int, default=1000, help="operators of a signature, type and machine")
    parser.add_argument("--seeds", type=int, default=3, help="choices of an operator's own programs")


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for name, known in read_priors(options.priors).items():
        if name.startswith("sm_"):
            groups = [group[: options.most] for group in groups_of(known)]
            yield name, [row for group in groups for row in _judge(group, name, known, options)]


def _judge(
    group: Sequence[Operator], architecture: str, known: ClassPriors, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    occupancy = occupancy_of(group, architecture, known)
    for name, points, programs in group:
        others = [_rows(points, programs) for other, points, programs in group if other != name]
        if occupancy is None or len(others) < _FEWEST_OTHERS or len(programs) < max(_OWN) + _FEWEST_TO_RANK:
            continue
        for own in _OWN:
            found: dict[str, list[tuple[float, float]]] = {"decisions": [], "occupancy": []}
            for seed in range(options.seed, options.seed + options.seeds):
                shuffled = np.random.default_rng(seed).permutation(len(programs)).tolist()
                mine, ranked = [programs[n] for n in shuffled[:own]], [programs[n] for n in shuffled[own:]]
                examples = [*others, *([_rows(points, mine, own=True)] if mine else [])]
                for how, more in (("decisions", None), ("occupancy", occupancy)):
                    guess = Guess.fit(examples, seed, more)
                    assert guess is not None
                    found[how].append(_quality(guess.score(points, [p.decisions for p in ranked]), ranked))
            means = {how: [fmean(values) for values in zip(*pairs, strict=True)] for how, pairs in found.items()}
            yield {"operator": name, "own": own, **{how: [round(v, 4) for v in pair] for how, pair in means.items()}}


def occupancy_of(group: Sequence[Operator], architecture: str, known: ClassPriors) -> Describe | None:
    """How programs of the group fill the GPU they were measured on; None for sketches that say nothing of it."""
    from slipstream.program.gpu_limits import find_limits

    _, points, programs = group[0]
    sketch = known.sketches[programs[0].signature]
    assert signature(sketch) == programs[0].signature
    limits = find_limits(sketch, points, None, resolve_target(f"cuda:{architecture}"))
    return limits.occupancy if limits.threads else None


def _rows(points: Any, programs: Sequence[TunedProgram], own: bool = False) -> Rows:
    return Rows(points, [p.decisions for p in programs], [p.seconds for p in programs], own)


def _quality(scores: Any, programs: Sequence[TunedProgram]) -> tuple[float, float]:
    speeds = [1 / program.seconds for program in programs]  # of a failure 0
    picked = np.argsort(-scores)[:_PICKED]
    return correlation(scores.tolist(), speeds), max(speeds[n] for n in picked) / max(speeds)


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{name}: {how}, {own} own, {what}": f"{value:.2f}"
        for name, rows in data.items()
        for own in _OWN
        for how in ("decisions", "occupancy")
        for what, value in _means(rows, own, how).items()
    }


def _means(rows: Sequence[Mapping[str, Any]], own: int, how: str) -> dict[str, float]:
    pairs = [row[how] for row in rows if row["own"] == own]
    if not pairs:
        return {}
    correlations, fastest = zip(*pairs, strict=True)
    return {
        "correlation": fmean(correlations),
        "speed": geometric_mean([max(speed, _SLOWEST) for speed in fastest]),
    }


def markdown(data: Mapping[str, Any]) -> str:
    rows = []
    for name, judged in data.items():
        for own in _OWN:
            count = str(sum(row["own"] == own for row in judged))
            told = [_means(judged, own, how) for how in ("decisions", "occupancy")]
            cells = [f"{one[what]:.2f}" for what in ("correlation", "speed") for one in told if one]
            rows.append([name, str(own), count, *cells])
    head = ["GPUs", "own programs known", "operators", "rank correlation, decisions alone", "with occupancy"]
    head += ["speed of the best of two, decisions alone", "with occupancy"]
    return "\n".join([*table(head, rows), ""])


if __name__ == "__main__":
    run(__name__)
