import numpy as np
import pytest

from slipstream.graph.operators import make_operator, weights_read
from slipstream.measure.timing.cold_weights import with_copies
from tests.measure.test_cpu import unscheduled_matmul


def arguments(weight_bytes: int) -> list[np.ndarray]:
    return [np.ones(10, np.float32), np.zeros(weight_bytes // 4, np.float32), np.zeros(10, np.float32)]


@pytest.mark.parametrize("size", [64 << 10, 128 << 20])
def test_small_and_huge_weights_are_there_once(size: int) -> None:
    arrays = arguments(size)
    sets = with_copies(arrays, [1], model_weights=1 << 30)
    assert [[a is b for a, b in zip(one, arrays, strict=True)] for one in sets] == [[True] * 3]


@pytest.mark.parametrize(
    ("model_mib", "between_mib"), [(0, 32), (5, 32), (45, 45), (400, 128)], ids=["unknown", "small", "large", "huge"]
)
def test_between_two_runs_as_many_weights_are_read_as_in_the_model(model_mib: int, between_mib: int) -> None:
    arrays = arguments(4 << 20)
    arrays[1][:] = np.arange(len(arrays[1]))
    sets = with_copies(arrays, [1], model_mib << 20)
    weights = [one[1] for one in sets]
    assert len({weight.ctypes.data for weight in weights}) == len(sets)
    assert between_mib <= sum(weight.nbytes for weight in weights[1:]) >> 20 < between_mib + 4
    assert all(np.array_equal(weight, arrays[1]) for weight in weights)
    assert all(one[0] is arrays[0] and one[2] is arrays[2] for one in sets)


def test_weights_larger_than_the_models_are_not_found_in_a_cache_either() -> None:
    """Winograd's forms of a weight are up to four times as large."""
    assert len(with_copies(arguments(40 << 20), [1], model_weights=10 << 20)) == 2


def test_activations_are_never_copied() -> None:
    assert len(with_copies(arguments(64 << 20), [0], model_weights=0)) == 1
    assert len(with_copies(arguments(64 << 20), [], model_weights=0)) == 1


def test_a_models_weights_are_those_of_all_calls() -> None:
    weighted = unscheduled_matmul(64)
    plain = weighted.without_attr("layout_free_buffers")
    operators = [make_operator("plain", [], plain, 7), make_operator("weighted", [], weighted, 3)]
    assert weights_read(operators) == 3 * 64 * 64 * 4
