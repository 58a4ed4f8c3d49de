"""What more tuning would bring: nothing once all is finished, more where curves rise, never more than there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import left_to_gain as recorded
from benchmarks import runner
from slipstream.belief import Belief
from slipstream.schedulers import OperatorState
from slipstream.schedulers.left_to_gain import MARGIN, LeftToGainEstimate

PEAK = 1e11


def estimate(*operators: OperatorState, patience: int = 64, most: int | None = None):  # type: ignore[no-untyped-def]
    return LeftToGainEstimate(Belief(peak_flops=PEAK, slot_trials=8), patience, most).estimate(operators)


def operator(key: str, history: list[float], **fields: object) -> OperatorState:
    given = {"weight": 1, "flops": 10**7, "slot_ends": tuple(range(8, len(history), 8)), **fields}
    return OperatorState(key, history=history, **given)  # type: ignore[arg-type]


RISING = operator("rising", list(1e-3 / np.linspace(1, 3, 33)))
FLAT = operator("flat", [1e-3] * 33)


def test_a_rising_curve_has_more_left_than_a_flat_one() -> None:
    rising, flat = estimate(RISING), estimate(FLAT)
    assert rising.expected > 5 * flat.expected > 0
    assert rising.at_most == pytest.approx(min(MARGIN * rising.expected, 1.0))


def test_what_is_finished_has_nothing_left_and_counts_in_the_latency() -> None:
    finished = replace(FLAT, key="finished", finished=True)
    assert estimate(finished) == estimate(finished, replace(finished, key="b"))
    assert (estimate(finished).at_most, estimate(finished).trials) == (0.0, 0)
    alone, beside = estimate(RISING), estimate(RISING, finished)
    assert beside.expected == pytest.approx(alone.expected * RISING.best / (RISING.best + finished.best))


def test_never_more_than_the_unfinished_take() -> None:
    new = [operator(f"new{n}", [1.0]) for n in range(3)]  # far from the peak, nothing tried
    left = estimate(*new, operator("done", [1.0], finished=True))
    assert left.expected < left.at_most <= 0.75


def test_trials_left_are_those_of_the_patience() -> None:
    makes = LeftToGainEstimate(Belief(peak_flops=PEAK, slot_trials=8), 64, 100)
    assert makes.trials_left(RISING) == 64
    assert makes.trials_left(FLAT) == 64 - 32
    assert makes.trials_left(operator("long", list(1e-3 / np.linspace(1, 2, 96)))) == 100 - 95
    assert LeftToGainEstimate(Belief(peak_flops=PEAK, slot_trials=8), 10**6).trials_left(RISING) == 64


def test_nothing_is_said_before_all_operators_have_a_time() -> None:
    assert estimate(RISING, operator("unmeasured", [float("inf")])) is None


def test_the_margin_is_the_one_that_was_fitted() -> None:
    raw = runner.read("left_to_gain")
    assert raw is not None
    data = runner.data_of(raw)
    assert recorded.margin_of(data["curves"]) == pytest.approx(MARGIN, abs=0.05)
    assert all(one["exceeded"] <= 0.1 * one["estimates"] for one in recorded.summary(data["curves"]).values())
