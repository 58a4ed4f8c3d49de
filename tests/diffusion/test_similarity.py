"""Similarity by the doublings between extents."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.diffusion.similarity import doublings, similarities, similarity


def test_a_doubling_of_one_of_two_extents_is_half_a_doubling():
    assert doublings([64, 7], [64, 7]) == 0
    assert doublings([64, 7], [128, 7]) == doublings([128, 7], [64, 7]) == doublings([64, 14], [64, 7]) == 0.5
    assert similarity([64, 7], [128, 14]) == 0.5


def test_every_direction_counts_whichever_is_the_longest():
    near, far = similarity([512, 7, 7], [512, 8, 7]), similarity([512, 7, 7], [512, 56, 56])
    assert near > 0.9
    assert far < 0.3


def test_a_missing_extent_counts_as_one():
    assert doublings([8, 4], [8]) == 1.0
    assert doublings([], []) == 0.0


def test_all_pairs_at_once():
    extents = [[64.0, 7.0], [128.0, 7.0], [64.0, 28.0]]
    found = similarities(extents)
    assert np.allclose(found, found.T)
    assert [[similarity(a, b) for b in extents] for a in extents] == pytest.approx(found)
