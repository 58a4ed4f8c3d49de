"""Chameleon (Ahn et al., ICLR 2020) as a search: exploration by reinforcement learning, measurements of centroids.

1. Adaptive exploration: walkers move over the knobs of a sketch by a policy that is trained on the predicted speed of
   where they come to (`policy.py`). The prediction is by trees over decisions (`diffusion/guess.py`), as AutoTVM's is
   by trees over knobs.
2. Adaptive sampling: the best predicted places are clustered, and the centroids are measured; how many there are is
   read off the knee of the clustering's loss, so that a slot may measure fewer programs than it could (`clusters.py`).
3. Sample synthesis: a centroid that was measured before or is not legal is replaced by a program made up of the most
   frequent values of the candidates, or of values drawn from theirs.

It differs from the paper in what a search here is: it has no memory, so the policy is trained anew in every slot; and
an operator has several sketches, so that each is explored on its own, at first at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from slipstream.diffusion.guess import FEWEST_EXAMPLES, Guess, Rows
from slipstream.program.decisions import Decisions, IllegalDecisionError
from slipstream.program.space import Program, Realized, Space
from slipstream.search.clusters import Clusters, at_the_knee, cluster
from slipstream.search.knobs import Knobs, Positions
from slipstream.search.policy import Policy, Walk
from slipstream.search.types import Measured, Question

_CANDIDATES = 256  # that are clustered
_WALKERS, _STEPS, _EPISODES = 32, 16, 8
_ATTEMPTS = 20  # at making up a program in place of a centroid


class Chameleon:
    """Walks over each sketch, measures the centroids of what looks best. It does not use relatives."""

    uses_score = False

    def propose(self, question: Question) -> list[Realized]:
        rng = np.random.default_rng(question.seed)
        if question.count < 1:
            return []
        known = {measured.program.identity for measured in question.measured}
        explored = [_Explored(question, example, rng) for example in question.space.sketches]

        def clustered(count: int) -> dict[_Explored, Clusters]:
            return {one: cluster(one.rows, share, rng) for one, share in _shared_out(explored, count)}

        sampled = at_the_knee(clustered, question.count)
        return [program for one, clusters in sampled.items() for program in one.programs(clusters, known)]


class _Explored:
    """The candidates of one sketch: `positions` and their predicted `scores`, which are logarithms of how many times
    as fast as the operator's best program they are."""

    def __init__(self, question: Question, example: Program, rng: np.random.Generator) -> None:
        self._space: Space = question.space
        self._example, self._rng = example, rng
        self._points = self._space.points(example)
        self._knobs = Knobs(self._points)
        own = [m for m in question.measured if m.program.sketch.text == example.sketch.text]
        self._guess = _fitted(own, self._space, question.seed % 2**31)
        self.is_new = self._guess is None
        seconds = min((m.seconds for m in own), default=math.inf)
        leader = min((m.seconds for m in question.measured), default=math.inf)
        behind = math.log(leader / seconds) if math.isfinite(leader) and math.isfinite(seconds) else 0.0
        visited = self._visited()
        scores = np.zeros(len(visited)) if self._guess is None else self._guess.score(self._points, visited)
        order = (int(i) for i in np.argsort(-scores, kind="stable"))
        best = list(islice((i for i in order if self._is_legal(visited[i])), _CANDIDATES))
        self.scores = scores[best] + behind
        rows = [self._knobs.positions(visited[i]) for i in best]
        self.positions: Positions = np.array(rows, dtype=np.int64).reshape(len(rows), len(self._knobs.tops))

    @property
    def rows(self) -> NDArray[np.float64]:
        """The candidates as they are clustered."""
        return self._knobs.scaled(self.positions)

    def programs(self, clusters: Clusters, known: set[tuple[str, Decisions]]) -> list[Realized]:
        """A program that is not `known` for each centroid, the best predicted first; they become known."""
        found: list[Realized] = []
        for number, centre in enumerate(clusters.centroids):
            wanted = np.rint(centre * self._knobs.tops).astype(np.int64)
            members = self.positions[clusters.members == number]
            tried = (self._realized(decisions, known) for decisions in self._in_its_place(wanted, members))
            first = next((one for one in tried if one is not None), None)
            found += [] if first is None else [first]
        if self._guess is None or not found:
            return found
        scores = self._guess.score(self._points, [one.program.decisions for one in found])
        return [found[i] for i in np.argsort(-scores, kind="stable")]

    def _in_its_place(self, centroid: Positions, members: Positions) -> Iterator[Decisions]:
        """The centroid, then what can replace it: the mode of all candidates, and mixtures of those it stands for."""
        yield self._knobs.decisions(centroid)
        yield self._knobs.decisions(np.array([np.bincount(column).argmax() for column in self.positions.T]))
        pool = members if len(members) else self.positions
        for attempt in range(_ATTEMPTS):
            if attempt == _ATTEMPTS // 2:
                pool = self.positions
            picked = self._rng.integers(len(pool), size=pool.shape[1])
            yield self._knobs.decisions(pool[picked, np.arange(pool.shape[1])])

    def _realized(self, decisions: Decisions, known: set[tuple[str, Decisions]]) -> Realized | None:
        program = replace(self._example, decisions=decisions, origin="chameleon")
        if program.identity in known or not self._is_legal(decisions):
            return None
        realized = self._space.realize(program)
        if realized is None or realized.program.identity in known:
            known.add(program.identity)  # so that it is not tried again in this slot
            return None
        known |= {program.identity, realized.program.identity}
        return realized

    def _visited(self) -> list[Decisions]:
        """Decisions that the walkers came to; at random while there is no prediction to walk by."""
        count = _CANDIDATES if self._guess is None else _WALKERS
        start = [self._space.draw_decisions(self._example, self._rng) for _ in range(count)]
        return list(dict.fromkeys(start if self._guess is None else [*start, *self._walk(start, self._guess)]))

    def _walk(self, start: Sequence[Decisions], guess: Guess) -> list[Decisions]:
        """All places of all episodes, each of which begins at `start`, is scored at its end and learned from."""
        policy = Policy(len(self._knobs.tops), self._rng)
        places: list[Decisions] = []
        for _ in range(_EPISODES):
            walk, path = Walk(), list[Decisions]()
            at = np.array([self._knobs.positions(d) for d in start], dtype=np.int64)
            for _ in range(_STEPS):
                at = at + policy.move(self._knobs.scaled(at), walk)
                here = [self._knobs.decisions(row) for row in at]
                at = np.array([self._knobs.positions(d) for d in here], dtype=np.int64)
                path += here
            policy.learn(walk, guess.score(self._points, path).reshape(_STEPS, len(start)))
            places += path
        return places

    def _is_legal(self, decisions: Decisions) -> bool:
        try:
            self._space.check_decisions(self._example.sketch, self._points, decisions)
        except IllegalDecisionError:
            return False
        return True


def _fitted(own: Sequence[Measured], space: Space, seed: int) -> Guess | None:
    if len(own) < FEWEST_EXAMPLES:
        return None
    points = space.points(own[0].program)
    return Guess.fit([Rows(points, [m.program.decisions for m in own], [m.seconds for m in own], own=True)], seed)


def _shared_out(explored: Sequence[_Explored], count: int) -> list[tuple[_Explored, int]]:
    """How many programs of each sketch to measure. Those too little measured for a prediction get an equal part each,
    the others one part together, by how many of the best predicted candidates are theirs."""
    new = [one for one in explored if one.is_new and len(one.positions)]
    others = [one for one in explored if not one.is_new and len(one.positions)]
    parts = len(new) + bool(others)
    sizes = [count // parts + (number < count % parts) for number in range(parts)] if parts else []
    shares = list(zip(new, sizes[bool(others) :], strict=True))
    if others:
        scores = np.concatenate([one.scores for one in others])
        owner: NDArray[np.intp] = np.repeat(np.arange(len(others)), [len(one.scores) for one in others])
        best = owner[np.argsort(-scores, kind="stable")[:_CANDIDATES]]
        theirs = np.bincount(best, minlength=len(others)) * sizes[0] / len(best)
        whole = np.floor(theirs).astype(int)
        for most in np.argsort(whole - theirs, kind="stable")[: sizes[0] - int(whole.sum())]:
            whole[most] += 1
        shares = [(one, int(size)) for one, size in zip(others, whole, strict=True)] + shares
    return [(one, size) for one, size in shares if size]
