"""Schedulers by name."""

from __future__ import annotations

import pytest

from slipstream.errors import SlipstreamError
from slipstream.schedulers import NAMES, make
from slipstream.schedulers.gradient import Gradient
from slipstream.schedulers.ucb import UCB

SETTING = {"seed": 0, "slot_trials": 8, "peak_flops": 1e11}


def test_names_aliases_and_options():
    assert isinstance(make("dynatune", **SETTING), UCB)
    assert type(make("Round-Robin", **SETTING)) is type(make("round_robin", **SETTING))
    gradient = make("gradient", **SETTING, alpha=0.5)
    assert isinstance(gradient, Gradient)
    assert (gradient.alpha, gradient.beta, gradient.window) == (0.5, 2.0, 3)
    assert "oracle" not in NAMES


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("magic", {}, "choose one of ucb, epsilon_greedy"),
        ("gradient", {"gamma": 1}, "no option 'gamma'; its options are alpha, beta, window"),
        ("round_robin", {"c": 1}, "no option 'c'; it has none"),
        ("oracle", {}, "needs the option 'curves'"),
        ("ucb", {"c": -1}, "0 or more"),
        ("ucb", {"curve": "exp3"}, "log_power, pow2"),
        ("ucb", {"sampler": "nuts"}, "importance, emcee"),
        ("ucb", {"slot_trials": 0}, "at least one trial"),
        ("epsilon_greedy", {"epsilon": 2}, "between 0 and 1"),
        ("softmax", {"temperature": 0}, "more than 0"),
        ("gradient", {"window": 0}, "at least one slot"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(name, options, said):
    with pytest.raises(SlipstreamError, match=said) as raised:
        make(name, **{**SETTING, **options})
    assert "\n" not in str(raised.value)
