"""How well trees over decisions rank programs they have not seen, and what fitting them costs (20 minutes).

A model is tuned with many trials of each operator; or name a session of `benchmarks.dynatune.record` by --session.
Each operator is held out in turn: the trees are fitted on its relatives' trials and its own first 0, 8, 16 or 32; they
rank all its later ones. Only the operator's most measured sketch is used. Relatives are those with the same signature,
the nearest six, as in the search.
  alone         its own trials only
  together      one fit to relatives' and own trials, own ones counting four times
  fine-tuned    fitted to the relatives, boosting continued on its own trials
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.ended_session import EndedSession, tune_apart
from benchmarks.runner import run
from slipstream.cost.accuracy import pair_accuracy
from slipstream.diffusion.families import cosine, tile_extents
from slipstream.diffusion.guess import Guess, Rows
from slipstream.diffusion.signature import signature
from slipstream.program.decisions import Decisions, Points

QUICK = {"model": "transformer_encoder", "trials": 26, "budget": "40s"}
KNOWN = (0, 8, 16, 32)
WAYS = ("alone", "together", "fine-tuned")
_FEWEST = 24  # trials to rank
_RELATIVES = 6


class Measured:
    """One operator's trials of the sketch that was measured most, in order."""

    def __init__(self, points: Points, signed: str, decisions: Sequence[Decisions], seconds: Sequence[float]) -> None:
        self.points, self.signed, self.decisions, self.seconds = points, signed, list(decisions), list(seconds)

    def rows(self, stop: int | None = None, *, own: bool = False) -> Rows:
        return Rows(self.points, self.decisions[:stop], self.seconds[:stop], own)


def operators_of(session: EndedSession) -> dict[str, Measured]:
    found = {}
    for key in session.weights:
        programs = [(session.program(t), t.median) for t in session.trials if t.operator == key]
        if programs:
            text = Counter(program.sketch.text for program, _ in programs).most_common(1)[0][0]
            same = [(program, seconds) for program, seconds in programs if program.sketch.text == text]
            first = same[0][0]
            found[key] = Measured(
                first.sketch.points(first.decisions),
                signature(first.sketch),
                [program.decisions for program, _ in same],
                [seconds for _, seconds in same],
            )
    return found


def relatives_of(key: str, operators: Mapping[str, Measured]) -> list[Measured]:
    own = operators[key]
    others = [other for name, other in operators.items() if name != key and other.signed == own.signed]
    size = tile_extents(own.points)
    return sorted(others, key=lambda other: -cosine(size, tile_extents(other.points)))[:_RELATIVES]


def rank(operators: Mapping[str, Measured]) -> Iterator[dict[str, Any]]:
    for key, own in operators.items():
        kin = relatives_of(key, operators)
        for known in KNOWN:
            if not kin or len(own.seconds) - known < _FEWEST:
                continue
            mine = [own.rows(known, own=True)] if known else []
            theirs = [other.rows() for other in kin]
            fits = {"alone": (mine, []), "together": (mine + theirs, []), "fine-tuned": (theirs, mine)}
            for way, (rows, later) in fits.items():
                began = time.perf_counter()
                guess = Guess.fit(rows, 0)
                if guess is not None and later:
                    guess = Guess.fit(later, 0, onto=guess)
                fitting = time.perf_counter() - began
                if guess is not None:
                    scores = guess.score(own.points, own.decisions[known:])
                    accuracy = pair_accuracy(scores, np.array(own.seconds[known:]))
                    yield {"operator": key, "known": known, "way": way, "accuracy": accuracy, "seconds": fitting}


def markdown(data: Mapping[str, Any]) -> str:
    lines = ["Pairs in the right order, mean over operators:", ""]
    lines += [f"| own trials known | {' | '.join(WAYS)} | operators |", "| --- |" + " --- |" * (len(WAYS) + 1)]
    for known in KNOWN:
        by_way = {way: [r for r in data["ranked"] if r["known"] == known and r["way"] == way] for way in WAYS}
        cells = [f"{100 * fmean(r['accuracy'] for r in rows):.1f} %" if rows else "" for rows in by_way.values()]
        lines.append(f"| {known} | {' | '.join(cells)} | {max(map(len, by_way.values()))} |")
    spent = {way: [r["seconds"] for r in data["ranked"] if r["way"] == way] for way in WAYS}
    cells = [f"{1e3 * median(seconds):.0f}" if seconds else "" for seconds in spent.values()]
    lines.append(f"| median ms to fit | {' | '.join(cells)} | |")
    return "\n".join(lines) + "\n"


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    """Share of pairs in the right order: way, own trials known."""
    found = {}
    for way in WAYS:
        for known in KNOWN:
            accuracies = [r["accuracy"] for r in data["ranked"] if (r["way"], r["known"]) == (way, known)]
            if accuracies:
                found[f"{way} {known}"] = f"{100 * fmean(accuracies):.0f}"
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", type=Path, help="a tuned one, instead of tuning")
    parser.add_argument("--model", default="squeezenet1_1")
    parser.add_argument("--trials", type=int, default=128, help="for every operator")
    parser.add_argument("--budget", help="of the tuning, unless all trials are to be made")


def _tune(options: argparse.Namespace) -> EndedSession:
    settings = {"families": "none", "most_trials": options.trials, "patience_trials": 10 * options.trials}
    chosen = {"scheduler": "sequential", "seed": options.seed, "budget": options.budget, "settings": settings}
    return tune_apart(f"zoo:{options.model}", options.work / f"{options.model}-{options.trials}", **chosen)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    session = EndedSession(options.session) if options.session else _tune(options)
    ranked = [r for r in rank(operators_of(session)) if math.isfinite(r["accuracy"])]
    return {"options": session.record.options, "ranked": ranked}


if __name__ == "__main__":
    run(__name__)
