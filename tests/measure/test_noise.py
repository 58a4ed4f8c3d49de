from __future__ import annotations

import math

import numpy as np

from slipstream.measure import MeasureConfig
from slipstream.measure.devices.cores import Cores
from slipstream.measure.devices.cpu import CpuDevice
from slipstream.measure.timing.noise import Drift, longest_wait, sample_probe, waits


def test_a_slow_spell_is_noticed_and_passes() -> None:
    drift = Drift()
    rng = np.random.default_rng(0)

    def timing(factor: float) -> list[float]:
        return [float(factor * rng.normal(1.0, 0.01)) for _ in range(5)]

    for _ in range(10):
        drift.add(timing(1.0))
        assert not drift.is_busy
    assert drift.add(timing(1.5)) > 0.4
    assert drift.is_busy
    drift.add(timing(1.0))
    assert not drift.is_busy


def test_a_machine_that_stays_slower_becomes_the_new_normal() -> None:
    drift = Drift(memory=16)
    for factor in [1.0] * 10 + [1.3] * 16:
        drift.add([factor])
    assert not drift.is_busy


def test_waiting_for_a_core_is_counted_by_thread() -> None:
    assert all(seconds >= 0.0 for seconds in waits().values())
    assert longest_wait({"1": 1.0, "2": 5.0}, {"1": 1.5, "2": 5.1, "3": 0.2}) == 0.5
    assert longest_wait({}, {}) == 0.0


def test_a_sample_of_the_reference_kernel_is_long_enough_to_be_timed() -> None:
    asked = []

    def sample(number: int, repeat: int) -> list[float]:
        asked.append((number, repeat))
        return [1e-5] * repeat

    assert len(sample_probe(sample)) == 5
    assert [number * 1e-5 for number, repeat in asked if repeat > 1] == [5e-4]


class _Kernel:
    """In the place of the worker that times the reference kernel: answers with these timings."""

    def __init__(self, *timings: float) -> None:
        self.left, self.channel = list(timings), self

    def send(self, request: object) -> None:
        pass

    def receive(self, seconds: float) -> dict[str, list[float]]:
        return {"samples": [self.left.pop(0)] * 5}


def test_a_moments_disturbance_does_not_make_the_machine_busy() -> None:
    device = CpuDevice(MeasureConfig(), Cores(frozenset({0})))

    def time_probe(*timings: float) -> int:
        """How many of the `timings` were needed."""
        device._probe, device._probed_at = _Kernel(*timings), -math.inf  # type: ignore[assignment]
        device._time_probe()
        return len(timings) - len(device._probe.left)  # type: ignore[union-attr]

    assert time_probe(1.0, 9.9) == 1
    assert time_probe(1.5, 1.0, 9.9) == 2
    assert not device.drifts["cpu"].is_busy
    assert time_probe(1.5, 1.4, 1.6, 9.9) == 3
    assert device.drifts["cpu"].is_busy
