from __future__ import annotations

import os

import numpy as np
import pytest

from slipstream.measure.arena import Slot, disagreement, map_arena, plan, random_values
from slipstream.measure.guarded import guarded


def test_private_maps_see_the_shared_values_and_keep_their_changes_to_themselves() -> None:
    fd = os.memfd_create("test")
    layout = plan([((3, 5), "float32", False), ((7,), "int8", True)])
    shared = map_arena(fd, layout, shared=True)
    shared[0][...] = 1.5
    shared[1][...] = 7
    one, other = map_arena(fd, layout), map_arena(fd, layout)
    assert (one[0] == 1.5).all()
    assert (one[1] == 7).all()
    one[0][...] = 0
    assert (other[0] == 1.5).all()
    assert (shared[0] == 1.5).all()
    os.close(fd)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int8", "uint8", "bool"])
def test_random_values_of_every_type(dtype: str) -> None:
    slot = Slot((64,), dtype, False, 0)
    values = random_values(slot, np.random.default_rng(0))
    assert values.shape == (64,)
    assert np.isfinite(values.astype(np.float64)).all()
    assert len(np.unique(values.astype(np.float64))) > 1


def test_disagreement_is_relative_to_the_size_of_the_values() -> None:
    expected = np.linspace(-100, 100, 1000, dtype=np.float32)
    assert not disagreement(expected + 0.01, expected, 1e-3)
    assert "1000 of 1000" in disagreement(expected + 1, expected, 1e-3)
    one_wrong = expected.copy()
    one_wrong[7] = np.nan
    assert "first at [7]" in disagreement(one_wrong, expected, 1e-3)
    assert not disagreement(one_wrong, one_wrong, 1e-3)
    integers = np.arange(10)
    assert not disagreement(integers, integers, 1e-3)
    assert disagreement(integers + 1, integers, 1e-3)


def test_a_write_beside_an_output_shows() -> None:
    output = guarded(Slot((1001,), "int8", True, 0))
    output.array[...] = 1
    assert output.intact
    output.margins[1][0] = 0
    assert not output.intact
    assert output.array.ctypes.data % 64 == 0
