"""Segments start at jumps of more than 20 %."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.belief.change_points import last_segment, segments


@pytest.mark.parametrize(
    ("performance", "starts"),
    [
        ([0.1], [0]),
        ([0.1, 0.1, 0.1], [0]),
        ([0.1, 0.119, 0.14], [0]),
        ([0.1, 0.13, 0.14], [0, 1]),
        ([0.1, 0.11, 0.2, 0.2, 0.21, 0.5], [0, 2, 5]),
        ([0.0, 0.0, 0.1, 0.1], [0, 2]),
        ([0.0, 0.0], [0]),
    ],
)
def test_segments(performance, starts):
    assert segments(np.array(performance)) == starts
    assert last_segment(np.array(performance)) == starts[-1]
