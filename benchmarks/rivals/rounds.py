"""Contenders in turns: the same model, inputs and threads, in short blocks, in a new order each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.rivals.contender import Contender, ContenderError

_SLOW_SECONDS = 1.0
_ROUNDS_OF_SLOW = 3


def compare(
    sides: Sequence[str], jobs: Mapping[str, Mapping[str, Any]], *, processes: int, rounds: int, seed: int
) -> dict[str, dict[str, Any]]:
    """For each side its description and, for each set of processes, its median of each round.

    Memory placement makes the same code up to a tenth faster or slower from process to process, hence several. The
    first set times the variants of each side's settings; the others use the fastest. A side that takes longer than
    a second takes part in three rounds only and has None for the others. One that cannot take part gives the reason.
    """
    found: dict[str, dict[str, Any]] = {side: {"blocks": []} for side in sides}
    rng = np.random.default_rng(seed)
    for number in range(processes):
        well = [side for side in sides if "failed" not in found[side]]
        chosen = {side: {"variant": found[side]["variant"]} if "variant" in found[side] else {} for side in well}
        started = {side: Contender(side, {**jobs[side], **chosen[side]}) for side in well}
        ready = _get_ready(started, found, choosing=number == 0)
        rows = _rounds(ready, rounds, rng)
        for side in ready:
            found[side]["blocks"].append([row[side] for row in rows])
        for contender in started.values():
            contender.close()
    return found


def _get_ready(
    started: Mapping[str, Contender], found: dict[str, dict[str, Any]], *, choosing: bool
) -> dict[str, Contender]:
    ready = {}
    for side, contender in started.items():
        try:
            found[side] = {**contender.wait(), **found[side]}
            ready[side] = contender
        except ContenderError as error:
            found[side]["failed"] = str(error)
    # Only when all are ready: what one tries must not be disturbed by another that is still compiling.
    for side, contender in ready.items() if choosing else ():
        found[side].update(contender.choose())
    return ready


def _rounds(ready: Mapping[str, Contender], rounds: int, rng: np.random.Generator) -> list[dict[str, float | None]]:
    rows: list[dict[str, float | None]] = []
    slow: set[str] = set()
    for number in range(rounds):
        row: dict[str, float | None] = dict.fromkeys(ready)
        for side in rng.permutation(list(ready)).tolist():
            if side in slow and number >= _ROUNDS_OF_SLOW:
                continue
            row[side] = float(np.median(ready[side].block()))
            if row[side] > _SLOW_SECONDS:
                slow.add(side)
        rows.append(row)
    return rows
