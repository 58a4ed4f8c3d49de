"""How much of a prior's improvement has reached its followers."""

from __future__ import annotations

import pytest

from slipstream.session.history import History, OperatorHistory, Slot, Trial
from slipstream.session.transfer import measured_transfer


def tuned(key: str, slots: list[tuple[int, list[tuple[float, str]]]], default: float = 8e-3) -> OperatorHistory:
    """An operator whose default program took so long, with the results and origins of its slots."""
    history = History([OperatorHistory(key, key, 1, 1000)])
    numbered = [(0, True, [(default, "default")]), *((number, False, trials) for number, trials in slots)]
    for number, is_default, trials in numbered:
        history.begin(Slot(number, key, default=is_default))
        for position, (seconds, origin) in enumerate(trials):
            history.add(Trial(key, number, position, seconds, origin=origin))
        history.end(number, float(number))
    return history.operators[key]


PRIOR = tuned("prior", [(1, [(4e-3, "diffusion:default")]), (9, [(2e-3, "diffusion:measured")])])


def test_without_followers_that_were_tuned_everything_is_assumed_to_transfer() -> None:
    assert measured_transfer(PRIOR, []) == 1.0
    assert measured_transfer(PRIOR, [tuned("a", []), tuned("b", [])]) == 1.0


@pytest.mark.parametrize(
    ("seconds", "share"),
    [(4e-3, 1.0), (8e-3 / 2**0.5, 0.5), (9e-3, 0.0), (float("inf"), 0.0), (1e-3, 1.0)],
    ids=["as much", "half, in doublings", "slower", "failed", "more than the prior"],
)
def test_what_carried_programs_gain_counts_by_what_the_prior_had_gained_then(seconds: float, share: float) -> None:
    follower = tuned("a", [(5, [(seconds, "diffusion:keep"), (1e-4, "diffusion:random")])])
    assert measured_transfer(PRIOR, [follower]) == pytest.approx((2 + share) / 3)
    assert measured_transfer(PRIOR, [follower] * 8) == pytest.approx((2 + 8 * share) / 10)


def test_later_slots_of_a_follower_and_those_before_the_prior_gained_say_nothing() -> None:
    later = tuned("a", [(5, [(8e-3, "diffusion:random")]), (6, [(8e-3, "diffusion:keep")])])
    early = tuned("b", [(1, [(8e-3, "diffusion:keep")])])
    idle = tuned("prior", [(1, [(7.9e-3, "diffusion:default")])])
    assert measured_transfer(PRIOR, [later]) == 1.0
    assert measured_transfer(PRIOR, [early]) == 1.0
    assert measured_transfer(idle, [tuned("c", [(5, [(8e-3, "diffusion:keep")])])]) == 1.0
