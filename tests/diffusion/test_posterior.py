"""The posterior is a real distribution, and it goes where measurements say."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from slipstream.diffusion.moves import REACH, Moves
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


def _factorisations(extent: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(extent,)]
    firsts = [first for first in range(1, extent + 1) if extent % first == 0]
    return [(first, *rest) for first in firsts for rest in _factorisations(extent // first, parts - 1)]


@pytest.mark.parametrize("tile", [Tile(36, 3, 6), Tile(2304, 5, 64), Tile(7, 2, 1), Tile(2, 2, 2)])
def test_a_tile_moves_to_every_legal_value_as_often_as_its_distance_says(tile):
    """Against a list of all factorisations; with 2304 in five parts there are 7,425."""
    values = [value for value in _factorisations(tile.extent, tile.parts) if value[-1] <= tile.most_innermost]
    start, liked = values[len(values) // 2], {values[0]: 1.5, values[-1]: -1.0}
    weights = np.array([math.exp(-tile.distance(v, start) / REACH + liked.get(v, 0.0)) for v in values])
    weights[values.index(start)] = 0.0
    moves = Moves(tile, start, liked)
    assert moves.is_possible == (len(values) > 1)
    if len(values) > 1:
        expected = weights / weights.sum()
        np.testing.assert_allclose([moves.probability(value) for value in values], expected, rtol=1e-9)
        seen = Counter(moves.draw(20_000, np.random.default_rng(0)))
        assert set(seen) <= set(values) - {start}
        outermost = Counter()
        for value, probability in zip(values, expected, strict=True):
            outermost[value[0]] += probability
        for factor, probability in outermost.items():
            found = sum(count for value, count in seen.items() if value[0] == factor) / 20_000
            assert found == pytest.approx(probability, abs=5 * math.sqrt(probability / 20_000) + 1e-3)


def test_a_large_tile_can_move_to_a_large_outermost_factor():
    posterior = Posterior((Tile(2304, 5, 64),), [Centre(((2, 4, 8, 6, 6),), 1.0, "keep")])
    drawn = [decisions[0] for decisions, _ in posterior.sample(2000, np.random.default_rng(0))]
    assert max(tile[0] for tile in drawn) > 16
    assert posterior.log_prob(((2304, 1, 1, 1, 1),)) > -math.inf


def test_a_tile_with_millions_of_values_is_drawn_from_at_once():
    tile = Tile(2**12 * 3**4 * 5**2 * 7, 5, 2**20)
    for value in Moves(tile, (tile.extent, 1, 1, 1, 1), {}).draw(200, np.random.default_rng(0)):
        tile.check(value)
