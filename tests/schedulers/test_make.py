"""Our schedulers by name, and what their options refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.errors import SlipstreamError
from slipstream.plugins import Context, make, names
from slipstream.schedulers.gradient import Gradient
from slipstream.schedulers.ucb import UCB

CONTEXT = Context(seed=0, slot_trials=8, peak_flops=1e11)


def test_names_aliases_and_options():
    assert isinstance(make("scheduler", "dynatune", CONTEXT), UCB)
    assert type(make("scheduler", "Round-Robin", CONTEXT)) is type(make("scheduler", "round_robin", CONTEXT))
    gradient = make("scheduler", "gradient", CONTEXT, alpha=0.5)
    assert isinstance(gradient, Gradient)
    assert (gradient.alpha, gradient.beta, gradient.window) == (0.5, 2.0, 3)
    assert "oracle" not in names("scheduler")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gradient", {"gamma": 1}, "no option 'gamma'; its options are alpha, beta, window"),
        ("round_robin", {"c": 1}, "no option 'c'; it has none"),
        ("ucb", {"c": -1}, "0 or more"),
        ("ucb", {"curve": "exp3"}, "log_power, pow2"),
        ("ucb", {"sampler": "nuts"}, "importance, emcee"),
        ("epsilon_greedy", {"epsilon": 2}, "between 0 and 1"),
        ("softmax", {"temperature": 0}, "more than 0"),
        ("gradient", {"window": 0}, "at least one slot"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(name, options, said):
    with pytest.raises(SlipstreamError, match=said) as raised:
        make("scheduler", name, CONTEXT, **options)
    assert "\n" not in str(raised.value)


def test_a_slot_has_at_least_one_trial():
    with pytest.raises(SlipstreamError, match="at least one trial"):
        make("scheduler", "ucb", replace(CONTEXT, slot_trials=0))
