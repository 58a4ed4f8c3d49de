"""Replay: the clock, the regret, the oracle, and how policies compare on synthetic curves."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from slipstream.plugins import Context, make, names
from slipstream.schedulers.oracle import Oracle
from slipstream.schedulers.replay import CurveError, RecordedCurve, replay
from slipstream.testing.synthetic import model_curves

PEAK = 1e11


def _make(name, curves, slot_trials, seed=0):
    if name == "oracle":
        return Oracle(slot_trials=slot_trials, curves=curves)
    return make("scheduler", name, Context(seed=seed, slot_trials=slot_trials, peak_flops=PEAK))


def test_time_latency_and_regret_by_hand():
    curves = [
        RecordedCurve("a", 1, 10, [0.0, 1.0, 2.0, 3.0], [10.0, 10.0, 4.0, 4.0]),
        RecordedCurve("b", 2, 10, [0.0, 5.0, 6.0, 9.0], [10.0, 8.0, 8.0, 7.0]),
    ]
    run = replay(_make("round_robin", curves, 1), curves, 1)
    assert run.choices == ["a", "b", "a", "b", "a", "b"]
    assert run.times == [0, 1, 6, 7, 8, 9, 12]
    assert run.latency == [30, 30, 26, 20, 20, 20, 18]
    # Slot 0: b would have brought 2 x 2 seconds, a brought none. Later, a brings the most or there is nothing to gain
    # but b's last step, which is one slot away only when b has had two.
    assert run.regret == [4, 2, 0, 0, 2, 0]
    assert run.lowest == 18
    assert run.cumulative_regret == 8
    assert run.time_to_within(0.12) == 7
    assert run.time_to_within(0.0) == 12
    assert run.latency_at(6.5) == 26


def test_what_is_never_reached_takes_for_ever():
    curves = [RecordedCurve("a", 1, 1, [0.0, 1, 2, 3, 4], [2.0, 2, 2, 2, 1])]
    run = replay(_make("sequential", curves, 1), curves, 1, patience_trials=2)
    assert run.choices == ["a", "a"]
    assert run.time_to_within(0.1) == math.inf


def test_the_oracle_sees_beyond_a_flat_stretch():
    curves = [
        RecordedCurve("steps", 1, 1, [0.0, 1, 2, 3], [10.0, 10.0, 10.0, 1.0]),
        RecordedCurve("slope", 1, 1, [0.0, 1, 2, 3], [10.0, 9.0, 8.0, 7.0]),
    ]
    assert replay(_make("oracle", curves, 1), curves, 1).choices[:3] == ["steps"] * 3


@pytest.mark.parametrize(
    ("trial", "seconds", "best", "expected"),
    [
        ([0, 2, 4], [0, 2, 6], [3, 2, 1], ([0, 1, 2, 4, 6], [3, 3, 2, 2, 1])),
        ([2, 3], [4, 5], [2, 5], ([0, 2, 4, 5], [math.inf, math.inf, 2, 2])),
    ],
)
def test_curves_from_points(trial, seconds, best, expected):
    curve = RecordedCurve.from_points("a", 1, 1, trial, seconds, best)
    assert (curve.seconds, curve.best) == expected


@pytest.mark.parametrize(
    ("trial", "seconds", "best", "said"),
    [
        ([], [], [], "not empty"),
        ([0, 1], [0], [1, 1], "one length"),
        ([1, 0], [0, 1], [1, 1], "trials must rise"),
        ([0, 1], [1, 0], [1, 1], "seconds must not fall"),
    ],
)
def test_bad_points_are_named(trial, seconds, best, said):
    with pytest.raises(CurveError, match=said):
        RecordedCurve.from_points("conv", 1, 1, trial, seconds, best)


def test_two_curves_of_one_operator_are_refused():
    curve = RecordedCurve("a", 1, 1, [0.0, 1.0], [2.0, 1.0])
    with pytest.raises(CurveError, match="same key"):
        replay(_make("sequential", [curve], 1), [curve, curve], 1)


@pytest.mark.timing
def test_cheap_policies_replay_thousands_of_slots_a_second():
    curves = model_curves(np.random.default_rng(0), 20, 400, PEAK)
    began = time.process_time()
    run = replay(_make("gradient", curves, 4), curves, 4)
    assert len(run.choices) / (time.process_time() - began) > 1000


def test_every_policy_ends_at_the_same_latency_and_the_oracle_is_fastest_on_average():
    curves = model_curves(np.random.default_rng(1), 6, 96, PEAK)
    policies = (*names("scheduler"), "oracle")
    runs = {name: replay(_make(name, curves, 16), curves, 16, patience_trials=1000) for name in policies}
    at = np.linspace(0, runs["oracle"].times[-1], 50)
    mean = {name: np.mean([run.latency_at(seconds) for seconds in at]) for name, run in runs.items()}
    assert {round(run.latency[-1] / run.lowest, 9) for run in runs.values()} == {1.0}
    assert min(mean, key=mean.__getitem__) == "oracle"


def test_dynatune_has_less_regret_than_policies_blind_to_latency():
    """Summed over several models, since one can favour anybody."""
    regret = dict.fromkeys(("ucb", "dynamic_round_robin", "dynamic_random", "sequential"), 0.0)
    for seed in range(3):
        curves = model_curves(np.random.default_rng(seed), 10, 128, PEAK)
        for name in regret:
            run = replay(_make(name, curves, 16), curves, 16)
            regret[name] += run.cumulative_regret / run.lowest
    assert regret["ucb"] < 0.7 * min(value for name, value in regret.items() if name != "ucb")
