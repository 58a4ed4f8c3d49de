import numpy as np
import pytest

from slipstream.measure.timing.cold_weights import with_copies


def arguments(weight_bytes: int) -> list[np.ndarray]:
    return [np.ones(10, np.float32), np.arange(weight_bytes // 4, dtype=np.float32), np.zeros(10, np.float32)]


@pytest.mark.parametrize("size", [64 << 10, 64 << 20])
def test_small_and_huge_weights_are_there_once(size: int) -> None:
    arrays = arguments(size)
    assert [[a is b for a, b in zip(one, arrays, strict=True)] for one in with_copies(arrays, [1])] == [[True] * 3]


def test_large_weights_are_there_often_enough_to_be_forgotten() -> None:
    arrays = arguments(4 << 20)
    sets = with_copies(arrays, [1])
    weights = [one[1] for one in sets]
    assert len({weight.ctypes.data for weight in weights}) == len(sets)
    assert sum(weight.nbytes for weight in weights[1:]) >= 32 << 20
    assert all(np.array_equal(weight, arrays[1]) for weight in weights)
    assert all(one[0] is arrays[0] and one[2] is arrays[2] for one in sets)


def test_activations_are_never_copied() -> None:
    assert len(with_copies(arguments(64 << 20), [0])) == 1
