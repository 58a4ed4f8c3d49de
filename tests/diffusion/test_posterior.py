"""The posterior is a real distribution, and it goes where measurements say."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from slipstream.diffusion.posterior import Centre, Observation, Posterior
from slipstream.program.decisions import Choice, Tile

_POINTS = (Tile(12, 2, 12), Choice((0, 1, 2), (1, 1, 1)))
_ALL = list(itertools.product([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)], range(3)))


def _fresh() -> Posterior:
    return Posterior(_POINTS, [Centre(((3, 4), 0), 1.0, "keep"), Centre(((12, 1), 2), 0.5, "scale")])


def test_probabilities_add_up_to_one():
    posterior = _fresh()
    assert sum(math.exp(posterior.log_prob(d)) for d in _ALL) == pytest.approx(1.0)
    posterior.update([Observation(((6, 2), 1), 1.0, "keep"), Observation(((1, 12), 0), 3.0, "scale")], rounds=1)
    assert sum(math.exp(posterior.log_prob(d)) for d in _ALL) == pytest.approx(1.0)
    assert posterior.log_prob(((5, 5), 0)) == -math.inf


def test_samples_follow_the_probabilities():
    posterior = _fresh()
    count = 20_000
    seen = Counter(decisions for decisions, _ in posterior.sample(count, np.random.default_rng(1)))
    for decisions in _ALL:
        expected = math.exp(posterior.log_prob(decisions))
        assert seen[decisions] / count == pytest.approx(expected, abs=4 * math.sqrt(expected / count) + 1e-3)


def test_it_concentrates_where_measurements_say():
    """Runs of a made-up operator whose best program is far from every centre."""

    def seconds(decisions):
        tile, choice = decisions
        return 1.0 + abs(math.log2(tile[1] / 12)) + 2.0 * (choice != 1)

    rng = np.random.default_rng(0)
    measured: dict = {}
    goal = ((1, 12), 1)
    before = _fresh().log_prob(goal)
    for rounds in range(5):
        posterior = _fresh()
        posterior.update(list(measured.values()), rounds)
        for decisions, origin in posterior.sample(6, rng):
            measured[decisions] = Observation(decisions, seconds(decisions), origin)
    posterior = _fresh()
    posterior.update(list(measured.values()), 5)
    assert posterior.log_prob(goal) > before + math.log(10)
    assert posterior.spread < Posterior(_POINTS, []).spread


def test_the_way_of_carrying_over_that_works_is_trusted_more():
    posterior = _fresh()
    observations = [Observation(((3, 4), n), 1.0, "keep") for n in range(2)]
    observations += [Observation(((12, 1), n), 9.0, "scale") for n in range(3)]
    posterior.update(observations, rounds=1)
    weights = Counter()
    for centre in posterior.centres:
        weights[centre.origin] += centre.weight
    assert weights["keep"] > 5 * weights["scale"]


def test_failures_teach_but_never_break_it():
    posterior = _fresh()
    posterior.update([Observation(((3, 4), 0), math.inf, "keep")], rounds=1)
    assert len(posterior.sample(10, np.random.default_rng(0))) == 10
