"""Judging programs by their decisions: what one operator has taught holds for another."""

from __future__ import annotations

import math

import numpy as np

from slipstream.cost.accuracy import pair_accuracy
from slipstream.diffusion.guess import Guess, Rows
from slipstream.program.decisions import Choice, Tile, draw


def _operator(columns: int, reduction: int):
    return (Tile(columns, 4, 16), Tile(reduction, 2, 16), Choice((0, 16, 64), (1, 1, 1)))


def _seconds(decisions) -> float:
    """Made up: lanes should be 16, sums about 8, some unrolling helps."""
    (_, _, vectors, lanes), (_, inner), _ = decisions
    return math.exp(abs(math.log2(lanes / 16)) + 0.5 * abs(math.log2(vectors * inner / 8)))


def _rows(points, count: int, seed: int, own: bool) -> Rows:
    rng = np.random.default_rng(seed)
    decisions = [draw(points, rng) for _ in range(count)]
    return Rows(points, decisions, [_seconds(d) for d in decisions], own)


def test_a_relative_teaches_and_own_measurements_correct():
    held_out = _rows(_operator(384, 96), 200, 5, own=True)
    relatives = [_rows(_operator(256, 128), 60, 1, own=False), _rows(_operator(512, 64), 60, 2, own=False)]
    own = _rows(_operator(384, 96), 20, 3, own=True)

    def accuracy(rows) -> float:
        guess = Guess.fit(rows, seed=0)
        assert guess is not None
        return pair_accuracy(guess.score(held_out.points, held_out.decisions), np.array(held_out.seconds))

    alone, taught, both = accuracy([own]), accuracy(relatives), accuracy([*relatives, own])
    assert taught > 0.8
    assert both > alone
    assert both > 0.85


def test_the_same_examples_give_the_same_scores():
    rows = [_rows(_operator(64, 64), 30, 1, own=True)]
    scores = [Guess.fit(rows, seed=3).score(rows[0].points, rows[0].decisions) for _ in range(2)]
    assert np.array_equal(*scores)


def test_too_little_or_nothing_but_failures_is_no_guess():
    points = _operator(64, 64)
    assert Guess.fit([], seed=0) is None
    decisions = [draw(points, np.random.default_rng(0)) for _ in range(20)]
    assert Guess.fit([Rows(points, decisions, [math.inf] * 20, own=True)], seed=0) is None
