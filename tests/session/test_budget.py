"""What a budget may be written as, and when it is spent."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.session.budget import Budget, BudgetError, parse_duration, parse_share
from slipstream.session.events import Left


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300), ("90s", 90), ("90", 90), (90, 90), (0.5, 0.5), ("1h30m", 5400), ("1h 30m", 5400), ("1.5h", 5400),
        ("20ms", 0.02), ("500us", 0.0005), ("500µs", 0.0005), (".5s", 0.5), ("2d", 172800), ("3min", 180), ("5M", 300),
        (" 5 m ", 300), ("1m1s", 61), ("2.s", 2), ("500\u03bcs", 0.0005), ("5\u00a0m", 300), ("5\u017f", 5),
    ],
)  # fmt: skip
def test_durations(text: Any, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "m", "5x", "five", "5m30", "1h30", "-5m", "5m-", "1e3", "5,5s", "0", "0s", 0, -1, "nan", "inf",
        math.nan, math.inf, True, None, "1:30", "9" * 400, "5m;rm -rf", "5m\u0131n",
    ],
)  # fmt: skip
def test_what_is_no_duration(text: Any) -> None:
    with pytest.raises(BudgetError, match=r"makes no sense|allows nothing") as refused:
        parse_duration(text)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with contextlib.suppress(BudgetError):
        assert 0 < parse_duration(text) < math.inf


@pytest.mark.parametrize("trials", [0, -1, 1.5, True, "7"])
def test_what_is_no_number_of_trials(trials: Any) -> None:
    with pytest.raises(BudgetError, match="a whole number from 1"):
        Budget.of(trials=trials)


@pytest.mark.parametrize(
    ("budget", "elapsed", "trials", "latency", "reason"),
    [
        (Budget(), 1e9, 10**9, 0.0, None),
        (Budget(seconds=10), 9.9, 0, 1.0, None),
        (Budget(seconds=10), 10, 0, 1.0, "the time is up"),
        (Budget(trials=5), 0, 4, 1.0, None),
        (Budget(trials=5), 0, 5, 1.0, "all trials are used"),
        (Budget(until_latency=0.5), 0, 0, math.inf, None),
        (Budget(until_latency=0.5), 0, 0, 0.5, "the wanted latency is reached"),
        (Budget(seconds=10, trials=5), 3, 5, 1.0, "all trials are used"),
    ],
)
def test_when_a_budget_is_spent(
    budget: Budget, elapsed: float, trials: int, latency: float, reason: str | None
) -> None:
    assert budget.spent(elapsed, trials, latency) == reason


def test_what_is_left_of_a_budget() -> None:
    left = Budget(seconds=100, trials=50, until_latency=0.01).remaining(25.0, 40, 0.04, 0.02)
    assert (left.seconds, left.trials, left.until_latency) == (75.0, 10, 0.01)
    assert left.fraction_used == pytest.approx(0.8)  # the trials; half of the way to the latency in doublings
    assert Budget().remaining(5, 5, 1, 1).fraction_used is None
    assert Budget(trials=1).remaining(0, 9, 1, 1).fraction_used == 1.0
    assert Budget(until_latency=1.0).remaining(0, 0, math.inf, math.inf).fraction_used is None


def test_a_budget_comes_back_from_json() -> None:
    budget = Budget.of("5m", 7, "20ms")
    assert Budget(**budget.to_json()) == budget


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("2 %", 0.02), ("0.02", 0.02), (0.02, 0.02), ("0.5%", 5e-3)])
def test_shares(text: Any, share: float) -> None:
    assert parse_share(text, "a gain") == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "two", "-1%", "100%", 1, 2, "nan", True, "2%%"])
def test_what_is_no_share(text: Any) -> None:
    with pytest.raises(BudgetError, match=r"a gain of .* makes no sense") as refused:
        parse_share(text, "a gain")
    assert "\n" not in str(refused.value)


def test_a_gain_that_is_not_worth_while() -> None:
    budget = Budget.of(until_gain_below="2%")
    assert budget.spent(0, 0, 1.0) is None
    assert budget.spent(0, 0, 1.0, Left(0.01, 0.04, 360.0)) is None
    reason = budget.spent(0, 0, 1.0, Left(0.006, 0.018, 360.0))
    assert reason == "at most 1.80 % more is likely, another 6 minutes, less than the 2 % asked for"
    assert Budget(**budget.to_json()) == budget


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (Left(0.01, 0.042, 360.0), "at most 4 % more is likely, another 6 minutes"),
        (Left(0.001, 0.0042, 40.0), "at most 0.4 % more is likely, another 40 seconds"),
        (Left(0.2, 0.5, 7300.0), "at most 50 % more is likely, another 2 hours"),
        (Left(1e-6, 1e-5, 0.2), "at most 0.1 % more is likely, another 1 second"),
        (Left(0.0, 0.0, 0.0), "nothing more is likely"),
    ],
)
def test_what_is_left_in_words(left: Left, text: str) -> None:
    assert str(left) == text
