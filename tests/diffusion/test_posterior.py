"""The posterior is a real distribution, and it goes where measurements say."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from slipstream.diffusion.moves import REACH, Moves
from slipstream.diffusion.posterior import SPREAD, Centre, Posterior
from slipstream.program.decisions import Choice, Tile

_POINTS = (Tile(12, 2, 12), Choice((0, 1, 2), (1, 1, 1)))
_ALL = list(itertools.product([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)], range(3)))


def _fresh() -> Posterior:
    return Posterior(_POINTS, [Centre(((3, 4), 0), 1.0, "keep"), Centre(((12, 1), 2), 0.5, "scale")])


def test_probabilities_add_up_to_one():
    posterior = _fresh()
    assert sum(math.exp(posterior.log_prob(d)) for d in _ALL) == pytest.approx(1.0)
    posterior.update([(((6, 2), 1), 1.0), (((1, 12), 0), 3.0)])
    assert sum(math.exp(posterior.log_prob(d)) for d in _ALL) == pytest.approx(1.0)
    assert posterior.log_prob(((5, 5), 0)) == -math.inf


def test_samples_follow_the_probabilities():
    posterior = _fresh()
    count = 20_000
    seen = Counter(decisions for decisions, _ in posterior.sample(count, np.random.default_rng(1)))
    for decisions in _ALL:
        expected = math.exp(posterior.log_prob(decisions))
        assert seen[decisions] / count == pytest.approx(expected, abs=4 * math.sqrt(expected / count) + 1e-3)


def test_it_goes_where_measurements_say():
    """Runs of a made-up operator whose best program is far from every centre."""

    def seconds(decisions):
        tile, choice = decisions
        return 1.0 + abs(math.log2(tile[1] / 12)) + 2.0 * (choice != 1)

    rng = np.random.default_rng(0)
    measured: dict = {}
    goal = ((1, 12), 1)
    before = _fresh().log_prob(goal)
    for _ in range(5):
        posterior = _fresh()
        posterior.update(list(measured.items()))
        measured |= {decisions: seconds(decisions) for decisions, _ in posterior.sample(6, rng)}
    posterior = _fresh()
    posterior.update(list(measured.items()))
    assert posterior.log_prob(goal) > before + math.log(4)


def test_half_of_the_draws_stay_with_the_prior():
    posterior = _fresh()
    posterior.update([(((1, 12), n), 1.0 + n) for n in range(3)])
    weights = Counter()
    for centre in posterior.centres:
        weights[centre.origin] += centre.weight
    assert weights == pytest.approx({"measured": 0.5, "keep": 1 / 3, "scale": 1 / 6})
    assert posterior.spread == SPREAD


def test_failures_leave_it_as_it_is():
    posterior = _fresh()
    posterior.update([(((3, 4), 0), math.inf)])
    assert posterior == _fresh()


def _factorisations(extent: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(extent,)]
    firsts = [first for first in range(1, extent + 1) if extent % first == 0]
    return [(first, *rest) for first in firsts for rest in _factorisations(extent // first, parts - 1)]


@pytest.mark.parametrize("tile", [Tile(36, 3, 6), Tile(2304, 5, 64), Tile(7, 2, 1), Tile(2, 2, 2)])
def test_a_tile_moves_to_every_legal_value_as_often_as_its_distance_says(tile):
    """Against a list of all factorisations; with 2304 in five parts there are 7,425."""
    values = [value for value in _factorisations(tile.extent, tile.parts) if value[-1] <= tile.most_innermost]
    start = values[len(values) // 2]
    weights = np.array([math.exp(-tile.distance(v, start) / REACH) for v in values])
    weights[values.index(start)] = 0.0
    moves = Moves(tile, start)
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
    for value in Moves(tile, (tile.extent, 1, 1, 1, 1)).draw(200, np.random.default_rng(0)):
        tile.check(value)
