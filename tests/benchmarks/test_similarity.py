"""Similarity is judged by what trees fitted on one operator say about another."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks import similarity
from slipstream.diffusion.distilled import SHIPPED


def test_rank_correlation_by_hand():
    assert similarity.correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 70.0])) == pytest.approx(1.0)
    assert similarity.correlation(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5 and 1, 2, 3.
    assert similarity.correlation(np.array([0.0, 5.0, 5.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(np.sqrt(3) / 2)
    assert similarity.correlation(np.array([1.0, 1.0]), np.array([1.0, 2.0])) == 0.0


def test_operators_of_the_priors_are_judged_by_their_others():
    options = argparse.Namespace(priors=SHIPPED, most=6, seed=0)
    data = dict(similarity.measure(options))
    rows = [row for judged in data.values() for row in judged]
    assert rows
    assert all(-1 <= row[how][what] <= 1 for row in rows for how in ("doublings", "cosine") for what in row[how])
    # What a relative teaches holds for others more often than not.
    assert np.mean([row["mean"] for row in rows]) > 0
    assert set(similarity.numbers(data)) >= {f"{name}: mean" for name, judged in data.items() if judged}
