"""Programs at random that a GPU can run.

Of factors drawn without a thought one set in a thousand fits. These are built up instead: every loop starts as one
piece per block of threads, and prime factors are moved to the threads, to a thread's own sums and to the tiles of the
reduction until each has about as much as was drawn for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slipstream.program.decisions import Decisions, IllegalDecisionError, Tile, Value, divisors
from slipstream.program.gpu_limits import Factor, GpuLimits

_THREADS = (32, 64, 128, 128, 256, 256, 512)
_SUMS = (1, 2, 4, 8, 16, 16, 32, 32, 64)
_VIRTUAL = (1, 1, 1, 2, 2, 4)
_REDUCED = (2, 4, 8, 8, 16, 16, 32, 64)
_ATTEMPTS = 20


def draw_on_gpu(limits: GpuLimits, rng: np.random.Generator) -> Decisions:
    """Decisions that `limits.check` accepts if that can be had in some attempts."""
    values = _build(limits, rng)
    for _ in range(_ATTEMPTS):
        try:
            limits.check(values)
            break
        except IllegalDecisionError:
            values = _build(limits, rng)
    return values


def _build(limits: GpuLimits, rng: np.random.Generator) -> Decisions:
    values: list[Value] = [
        (point.extent, *[1] * (point.parts - 1)) if isinstance(point, Tile) else point.draw(rng)
        for point in limits.points
    ]
    if limits.tiles:
        shared = {decision for decision, _ in limits.blocks}
        reduced = [
            (number, part)
            for number, point in enumerate(limits.points)
            if isinstance(point, Tile) and number not in shared
            for part in range(1, point.parts)
        ]
        for takers, choices, each in (
            (limits.threads, _THREADS, limits.lanes),
            (limits.sums, _SUMS, limits.sum_registers),
            (limits.virtual, _VIRTUAL, 1),
        ):
            _move(limits, values, takers, int(rng.choice(choices)) // each, rng)
        # Whoever fetches ahead needs a second tile to fetch.
        whole = math.prod(_outermost(values, (number, 0)) for number in {number for number, _ in reduced})
        most = whole // 2 if limits.copies > 1 else whole
        _move(limits, values, reduced, min(int(rng.choice(_REDUCED)), most), rng)
    return tuple(values)


def _move(
    limits: GpuLimits, values: list[Value], takers: Sequence[Factor], wanted: int, rng: np.random.Generator
) -> None:
    """Move prime factors from the outermost parts to `takers` until their product is about `wanted`."""
    product = 1
    while product < wanted:
        moves = [
            (factor, prime)
            for factor in takers
            for prime in _primes(_outermost(values, factor))
            if product * prime <= 1.5 * wanted and _allows(limits, values, factor, prime)
        ]
        if not moves:
            return
        (decision, part), prime = moves[int(rng.integers(len(moves)))]
        changed = list(values[decision])  # type: ignore[arg-type]
        changed[0] //= prime
        changed[part] *= prime
        values[decision] = tuple(changed)
        product *= prime


def _outermost(values: Sequence[Value], factor: Factor) -> int:
    value = values[factor[0]]
    return value[0] if isinstance(value, tuple) else 1


def _allows(limits: GpuLimits, values: Sequence[Value], factor: Factor, prime: int) -> bool:
    decision, part = factor
    point, value = limits.points[decision], values[decision]
    if not isinstance(point, Tile) or not isinstance(value, tuple):
        return False
    return part < point.parts - 1 or value[part] * prime <= point.most_innermost


def _primes(number: int) -> list[int]:
    """The prime divisors of `number`, each once."""
    return [d for d in divisors(number) if d > 1 and all(d % e for e in range(2, math.isqrt(d) + 1))]
