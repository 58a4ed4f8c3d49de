"""Racing and settling on synthetic samples, where the truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from slipstream.measure.config import EVALUATIONS, Racing
from slipstream.measure.timing.racing import Verdict, judge, runs_per_sample, variation
from slipstream.measure.timing.sampling import race
from slipstream.measure.timing.settling import Settling, near_ties, settle

RACING = Racing()


def _noisy(rng: np.random.Generator, truth: float, spread: float = 0.02) -> float:
    """One-sided noise with a tail: mostly a few per cent, now and then much more."""
    hiccup = rng.exponential(1.0) if rng.random() < 0.03 else 0.0
    return float(truth * (1 + abs(rng.normal(0, spread)) + hiccup))


def _race(rng: np.random.Generator, truth: float, best: float) -> tuple[Verdict, int]:
    samples: list[float] = []
    while True:
        samples.append(_noisy(rng, truth))
        verdict = judge(samples, best, RACING)
        if verdict is not Verdict.GO_ON:
            return verdict, len(samples)


def test_much_slower_programs_take_a_sample_or_two() -> None:
    rng = np.random.default_rng(0)
    counts = [_race(rng, 4.5, 1.0) for _ in range(200)]
    assert all(verdict is Verdict.WORSE for verdict, _ in counts)
    assert np.mean([count for _, count in counts]) < 1.5


def test_a_program_as_good_as_the_best_is_hardly_ever_given_up() -> None:
    rng = np.random.default_rng(1)
    best = float(np.median([_noisy(rng, 1.0) for _ in range(1001)]))
    lost = sum(_race(rng, 0.97, best)[0] is Verdict.WORSE for _ in range(1000))
    assert lost <= 10


def test_promising_programs_get_more_samples_than_hopeless_ones() -> None:
    rng = np.random.default_rng(2)
    promising = np.mean([_race(rng, 0.99, 1.01)[1] for _ in range(200)])
    hopeless = np.mean([_race(rng, 2.0, 1.01)[1] for _ in range(200)])
    assert promising >= RACING.least_samples > hopeless


def test_without_a_best_nothing_is_worse() -> None:
    assert judge([5.0], math.inf, RACING) is Verdict.GO_ON
    assert judge([5.0] * RACING.least_samples, math.inf, RACING) is Verdict.ENOUGH
    assert judge([5.0], math.inf, RACING, spent=10.0) is Verdict.ENOUGH


@pytest.mark.parametrize(("seconds", "runs"), [(1.0, 1), (0.002, 1), (0.0002, 10), (0.0, 1000)])
def test_short_programs_are_run_several_times_per_sample(seconds: float, runs: int) -> None:
    assert runs_per_sample(seconds, RACING) == runs


def test_a_hopeless_first_run_is_the_only_one() -> None:
    def never(*_: int) -> list[float]:
        raise AssertionError("no more runs were needed")

    samples = race(never, never, first=1.0, best=0.01, racing=RACING)
    assert samples.seconds == (1.0,)
    assert samples.stopped_early


@pytest.mark.parametrize("name", EVALUATIONS)
def test_only_racing_gives_a_slow_program_up(name: str) -> None:
    settings = EVALUATIONS[name]
    rng = np.random.default_rng(4)
    taken = race(lambda: None, _sampler(rng, 4.0), 4.0, 1.0, settings, _Clock())
    assert taken.stopped_early == (name == "racing")
    assert len(taken.seconds) == {"racing": 1, "adatune": 3, "fixed": 20}[name]


def test_adatune_takes_more_samples_of_a_program_whose_times_vary() -> None:
    settings, rng = EVALUATIONS["adatune"], np.random.default_rng(5)
    steady, unsteady = (
        np.mean([len(race(lambda: None, _sampler(rng, 1.0, spread), 1.0, 1.0, settings, _Clock()).seconds) for _ in r])
        for r, spread in ((range(50), 0.02), (range(50), 0.6))
    )
    assert steady < 3.5
    assert 5 < unsteady <= settings.most_samples


def test_the_variation_is_that_of_rates_without_extremes() -> None:
    assert variation([1.0, 0.5]) == pytest.approx(0.5 / 1.5)  # rates 1 and 2
    assert variation([1.0, 1.0, 1.0, 1e-3, 1e3]) == 0.0
    assert judge([1.0, 1.0], 1.0, EVALUATIONS["adatune"]) is Verdict.GO_ON
    assert judge([1.0, 1.0, 1.1], 1.0, EVALUATIONS["adatune"]) is Verdict.ENOUGH
    assert judge([1.0, 1.0, 2.0], 1.0, EVALUATIONS["adatune"]) is Verdict.GO_ON


@pytest.mark.parametrize("name", ["adatune", "fixed"])
def test_a_program_that_takes_long_ends_in_time(name: str) -> None:
    clock = _Clock()

    def sample(number: int, repeat: int) -> list[float]:
        clock.now += 2.0 * repeat
        return [2.0 * (1 + clock.now % 3) for _ in range(repeat)]

    taken = race(lambda: None, sample, 2.0, 1.0, EVALUATIONS[name], clock)
    assert len(taken.seconds) < 20


class _Clock:
    """Stands still unless it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _sampler(rng: np.random.Generator, truth: float, spread: float = 0.02) -> Callable[[int, int], list[float]]:
    return lambda number, repeat: [_noisy(rng, truth, spread) for _ in range(repeat)]


def test_settle_finds_a_winner_two_per_cent_ahead() -> None:
    truths = [1.02, 1.0, 1.03, 1.05]
    wins = decided = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        standing = settle(lambda i, rng=rng: _noisy(rng, truths[i], 0.01), 4, Settling(), rng)
        decided += standing.decided
        wins += truths[standing.winner] == 1.0
    assert wins >= 95
    assert decided >= 90


def test_settle_does_not_pursue_differences_that_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    truths = [1.0, 1.0005]
    standing = settle(lambda i: truths[i] * (1 + rng.normal(0, 0.0005)), 2, Settling(), rng)
    assert standing.decided
    assert len(standing.rounds[0]) < Settling().most_rounds


def test_a_common_slowdown_does_not_decide_anything() -> None:
    """The machine gets twice as slow from round to round; the one that is 3 % faster still wins."""
    rng = np.random.default_rng(3)
    clock = iter(range(10_000))
    truths = [1.03, 1.0]
    standing = settle(lambda i: truths[i] * (1 + (next(clock) // 20) % 2) * rng.normal(1, 0.002), 2, Settling(), rng)
    assert standing.winner == 1
    assert standing.decided


def test_near_ties_are_the_fastest_few() -> None:
    assert near_ties([1.2, 1.0, 1.04, 1.06], Settling(near=0.05)) == [1, 2]
    assert near_ties([], Settling()) == []
    assert len(near_ties([1.0] * 20, Settling(most_finalists=8))) == 8


def test_a_race_ends_when_it_is_enough() -> None:
    rounds = iter([False, False, True])
    standing = settle(lambda i: 1.0 + i, 3, Settling(), np.random.default_rng(0), lambda: next(rounds))
    assert standing.winner == 0
    assert not standing.decided
    assert [len(samples) for samples in standing.rounds] == [3, 3, 3]
