"""On how many threads each operator of a compiled model runs: those on which it is fastest inside of the model.

More threads cost more to start and to wait for, and spread data over more caches. What that comes to depends on the
operators before and after, so it is measured in calls of the whole model, not operator by operator.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from slipstream.errors import BuildError
from slipstream.frontends.inputs import Array
from slipstream.runtime.library import ModelLibrary
from slipstream.runtime.plan import Plan

PlanOrNone = TypeVar("PlanOrNone", Plan, Plan | None)

_SECONDS = 0.6
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 100
# The fewest threads of those that are about as fast: they leave cores to other callers.
_NEAR = 1.02


def choose_step_threads(library: ModelLibrary, inputs: Sequence[Array], threads: int) -> list[int] | None:
    """At most how many threads for each step of a model that is called with `threads`; None to leave the plan as it is.

    Every step is timed with 1, 2, 4, ... threads. What that chooses is then timed against the plan, in turns, and has
    to be faster.
    """
    counts = [*(2**power for power in range(threads.bit_length()) if 2**power < threads), threads]
    steps = len(library.steps)
    if len(counts) < 2 or not steps:
        return None
    times = _medians(library, inputs, [[count] * steps for count in counts])
    near = times <= _NEAR * times.min(axis=0)
    chosen = [counts[int(np.argmax(near[:, step]))] for step in range(steps)]
    whole = _medians(library, inputs, [None, chosen]).sum(axis=1)
    return chosen if whole[1] < whole[0] else None


def with_step_threads(plan: PlanOrNone, threads: Sequence[int]) -> PlanOrNone:
    """The plan with at most so many threads for each of its steps."""
    if plan is None:
        return plan
    if len(threads) != len(plan.steps):
        raise BuildError(
            f"threads are given for {len(threads)} steps of a model that has {len(plan.steps)}: tune it again"
        )
    return replace(plan, steps=tuple(replace(s, threads=n) for s, n in zip(plan.steps, threads, strict=True)))


def _medians(library: ModelLibrary, inputs: Sequence[Array], limits: Sequence[Sequence[int] | None]) -> Array:
    """The median nanoseconds of each step (column) with each of the `limits` (row), in turns."""
    rng = np.random.default_rng(0)
    found: list[Array] = []
    deadline = time.monotonic() + _SECONDS
    while len(found) < _LEAST_ROUNDS or (time.monotonic() < deadline and len(found) < _MOST_ROUNDS):
        round_times = np.zeros((len(limits), len(library.steps)))
        for row in rng.permutation(len(limits)):
            round_times[row] = library.profile(inputs, limits[row])
        found.append(round_times)
    medians: Array = np.median(np.stack(found), axis=0)
    return medians
