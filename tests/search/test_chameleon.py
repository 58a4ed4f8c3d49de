"""Chameleon's parts against what is known without them: laid-out clusters, a hill to walk up, a planted optimum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from slipstream.program.decisions import Choice, Decisions, Location, Tile, check, draw
from slipstream.search.chameleon import Chameleon
from slipstream.search.clusters import KNEE, Clusters, at_the_knee, cluster
from slipstream.search.knobs import Knobs
from slipstream.search.policy import Policy, Walk
from slipstream.search.types import Measured, Question
from slipstream.testing.operators import matmul_space

POINTS = (Tile(96, 4, 64), Choice((0.0, 16.0, 64.0), (0.3, 0.3, 0.4)), Location(), Tile(7, 2, 64))


def test_knobs_say_the_same_decisions_back() -> None:
    knobs, rng = Knobs(POINTS), np.random.default_rng(0)
    for _ in range(200):
        decisions = draw(POINTS, rng)
        row = np.array(knobs.positions(decisions))
        assert (row >= 0).all()
        assert (row <= knobs.tops).all()
        assert knobs.decisions(row) == decisions


def test_knobs_anywhere_are_legal_decisions() -> None:
    knobs, rng = Knobs(POINTS), np.random.default_rng(1)
    for _ in range(200):
        check(POINTS, knobs.decisions(rng.integers(-3, knobs.tops + 4)))


def _at_the_knee(rows: NDArray[np.float64], most: int, rng: np.random.Generator) -> Clusters:
    return at_the_knee(lambda count: {"all": cluster(rows, count, rng)}, most)["all"]


def test_clusters_that_lie_apart_are_found_and_more_are_not_asked_for() -> None:
    rng = np.random.default_rng(2)
    centres = np.array([[x, y] for x in range(4) for y in range(4)], dtype=float)  # 16, where two steps of 8 lead
    rows = np.repeat(centres, 20, axis=0) + rng.normal(0, 1e-3, (320, 2))
    assert cluster(rows, 16, rng).loss < cluster(rows, 8, rng).loss / KNEE
    found = _at_the_knee(rows, 64, rng)
    assert len(found.centroids) in (16, 24, 32)  # at the latest where a further step only splits what lies together
    for number in range(len(found.centroids)):
        own = rows[found.members == number]
        if len(own):
            assert found.centroids[number] == pytest.approx(own.mean(axis=0))
    assert len(_at_the_knee(rows, 3, rng).centroids) == 3


def test_an_even_cloud_has_its_knee_at_the_first_step() -> None:
    rng = np.random.default_rng(3)
    # In many dimensions twice as many clusters hardly lower the loss.
    assert len(_at_the_knee(rng.random((300, 12)), 64, rng).centroids) == 16


def test_there_are_no_more_clusters_than_different_rows() -> None:
    rows = np.array([[0.0], [1.0], [1.0]])
    found = cluster(rows, 8, np.random.default_rng(4))
    assert sorted(found.centroids[:, 0]) == [0.0, 1.0]
    assert found.loss == 0


def test_the_policy_learns_to_walk_up_a_hill() -> None:
    """Two knobs from 0 to 1, the top at (0.9, 0.1): walks of a trained policy end nearer than those of a new one."""
    rng = np.random.default_rng(5)
    policy, top = Policy(2, rng), np.array([0.9, 0.1])
    ends = []
    for _ in range(40):
        walk, at, rewards = Walk(), np.full((32, 2), 0.5), []
        for _ in range(12):
            at = np.clip(at + 0.05 * policy.move(at, walk), 0, 1)
            rewards.append(-np.abs(at - top).sum(axis=1))
        policy.learn(walk, np.array(rewards))
        ends.append(float(np.abs(at - top).sum(axis=1).mean()))
    assert np.mean(ends[-5:]) < 0.6 * np.mean(ends[:5])


def _seconds(decisions: Decisions) -> float:
    """Least where the innermost factors of the first two tiles are 16."""
    inner = [value[-1] for value in decisions if isinstance(value, tuple)][:2]
    return 1e-3 * float(np.prod([1 + abs(np.log2(factor / 16)) for factor in inner]))


def test_measurements_lead_it_to_faster_programs() -> None:
    """What it proposes after 12 random programs of each sketch is faster than these, on average and at best."""
    space, rng = matmul_space(), np.random.default_rng(7)
    drawn = [replace(e, decisions=space.draw_decisions(e, rng)) for e in space.sketches for _ in range(12)]
    measured = [Measured(program, _seconds(program.decisions), 0) for program in drawn]
    found = Chameleon().propose(Question(space, 8, 3, measured, lambda rows: np.zeros(len(rows))))
    seconds = [_seconds(one.program.decisions) for one in found]
    assert len(seconds) == 8
    assert np.mean(seconds) < np.quantile([m.seconds for m in measured], 0.25)


def test_a_centroid_that_was_measured_is_replaced_by_one_that_was_not() -> None:
    space = matmul_space()
    measured: Sequence[Measured] = ()
    for slot in range(3):
        # The same seed each time: without replacement the same centroids of random candidates would come again.
        found = Chameleon().propose(Question(space, 4, 9, measured, lambda rows: np.zeros(len(rows))))
        identities = [m.program.identity for m in measured] + [r.program.identity for r in found]
        assert len(found) == 4
        assert len(set(identities)) == len(identities)
        measured = [*measured, *(Measured(r.program, 1e-3, slot) for r in found)]


def test_a_large_slot_is_not_filled_beyond_the_knee() -> None:
    found = Chameleon().propose(Question(matmul_space(), 64, 1, (), lambda rows: np.zeros(len(rows))))
    assert 8 <= len(found) < 64
