"""Runs are prepared as a model prepares them: inputs just written, all else out of the cores' caches."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from slipstream.machine.target import resolve_target
from slipstream.machine.threads import use_threads
from slipstream.measure.arena import aligned
from slipstream.measure.lowering import as_tensor
from slipstream.measure.timing import in_model
from slipstream.measure.timing.in_model import CallMemory, PreparedRuns, Preparing, cache_bytes, seconds_of


@pytest.fixture(scope="module")
def preparing() -> Preparing:
    use_threads(1)
    return Preparing(resolve_target())


def test_every_run_finds_the_inputs_as_they_were(preparing: Preparing) -> None:
    inputs = [np.arange(7, dtype=np.int8), np.full((3, 5), 2.5, np.float32)]
    memory = CallMemory(inputs, [np.zeros(11, np.float16)])
    found = []

    def run() -> None:
        found.append([array.copy() for array in memory.inputs])
        for array in memory.inputs:
            array[...] = 0

    PreparedRuns(preparing, memory, 1, run).sample(3)
    assert len(found) == 3
    for one in found:
        for array, given in zip(one, inputs, strict=True):
            np.testing.assert_array_equal(array, given)


def test_a_sample_has_no_more_runs_than_are_enough(preparing: Preparing) -> None:
    calls: list[None] = []
    runs = PreparedRuns(preparing, CallMemory([], []), 1, lambda: calls.append(None))
    assert 0 < runs.sample(1000) < 1e-3
    assert 1 < len(calls) < 100


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.float32, np.int64, ml_dtypes.bfloat16])
def test_arguments_are_apart_aligned_and_in_place(dtype: type) -> None:
    given = [np.ones(shape, dtype) for shape in ((), (3, 7), (65,), (1, 0, 2))]
    memory = CallMemory(given[:2], given[2:])
    arrays = [*memory.inputs, *memory.outputs]
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    for array, tensor in zip(arrays, map(as_tensor, arrays), strict=True):
        array[...] = 0
        np.testing.assert_array_equal(tensor.numpy(), np.zeros_like(array))
        array[...] = 1
    for array, values in zip(arrays, given, strict=True):
        np.testing.assert_array_equal(array, values)


def test_a_kernel_without_large_pages_gives_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_model, "_WANT_LARGE_PAGES", 12345)  # an advice that no kernel takes
    given = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(CallMemory([given], []).inputs[0], given)


def test_the_cache_of_a_machine_that_does_not_tell_is_the_usual_one(tmp_path: Path) -> None:
    assert cache_bytes(tmp_path) == 1 << 20
    (tmp_path / "index2").mkdir()
    for text, expected in (("2048K\n", 2 << 20), ("65536K\n", 4 << 20), ("much", 1 << 20)):
        (tmp_path / "index2" / "size").write_text(text)
        assert cache_bytes(tmp_path) == expected


@pytest.mark.timing
def test_what_fits_in_a_cache_is_not_found_there(preparing: Preparing) -> None:
    other = aligned((cache_bytes() // 4,), np.dtype(np.int32))  # as many bytes as the cache has

    def run() -> None:
        other.sum()

    prepared = PreparedRuns(preparing, CallMemory([], []), 1, run)
    # In turns: the machine may be faster or slower a moment later.
    samples = [(min(seconds_of(run) for _ in range(10)), prepared.sample(3)) for _ in range(20)]
    cached, found = map(min, zip(*samples, strict=True))
    assert found > 1.02 * cached
