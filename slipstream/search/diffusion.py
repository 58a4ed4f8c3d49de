"""Bayesian code diffusion as a search: draw many programs from the posterior, judge them by their decisions, replay
and measure few.

For every sketch of the operator there is a posterior, centred on the best programs of relatives with the same
signature, on the default program and on the operator's own measurements. Each sketch gets a part of the proposals
according to its best program or, before it has one, according to what it was worth to relatives. Where no earlier
session has tuned any, distilled priors are relatives too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import numpy as np

from slipstream.diffusion.distilled import Neighbour
from slipstream.diffusion.guess import Guess, Rows
from slipstream.diffusion.parts import Parts
from slipstream.diffusion.posterior import Centre, Posterior
from slipstream.diffusion.propagation import PROPAGATIONS, Propagation, propagate
from slipstream.diffusion.signature import signature
from slipstream.program.decisions import Decisions, IllegalDecisionError, Points, check, tile_extents
from slipstream.program.space import Program, Realized, Space
from slipstream.search.types import Measured, Question, Relative

_DRAWN_FOR_EACH, _MOST_DRAWN = 128, 1024  # program of a slot: those of short slots are found sooner
_EXPLORING = 0.25  # of the proposals, drawn from the posterior without ranking
_PROGRAMS_OF_A_RELATIVE = 2
_MOST_RELATIVES = 6
_MOST_DISTILLED = 6
_MOST_CARRIED = 0.5  # of a slot, adapted programs of relatives
_STEEPNESS = 6.0
_STOCK = 1.4  # a sketch of MetaSchedule, of which nothing is known yet, counts as so many times slower than the best
_AT_ONCE = 4  # schedules replayed at a time in half precision


class Diffusion:
    """Proposes from the posterior of the operator's family."""

    uses_score = False

    def __init__(self, parts: Parts = Parts()) -> None:  # noqa: B008  # frozen
        self._parts = parts
        self.carries_over = parts.relatives

    def propose(self, question: Question) -> list[Realized]:
        rng = np.random.default_rng(question.seed)
        sketches = [_Candidates(question, example, self._parts, rng) for example in question.space.sketches]
        known = {measured.program.identity for measured in question.measured}
        found: list[Realized] = []
        if question.count < 1:
            return found
        for program, realized in _realize(question.space, _ordered(sketches), known):
            if realized is not None and not {program.identity, realized.program.identity} & known:
                known |= {program.identity, realized.program.identity}
                found.append(realized)
            if len(found) == question.count:
                break
        return found


def _ordered(sketches: Sequence[_Candidates]) -> Iterator[Program]:
    """All candidates in the order to try them: sketches alternate in proportion to their share of the proposals.

    Candidates of a sketch are drawn when it is its turn, which for most is after enough were found.
    """
    weights = _sketch_weights(
        [sketch.best for sketch in sketches],
        [sketch.inherited for sketch in sketches],
        [sketch.usual for sketch in sketches],
    )
    queues: dict[int, Iterator[Program]] = {}
    used = dict.fromkeys(range(len(sketches)), 0)
    while used:
        # Largest remainder: the sketch furthest behind its share is next.
        turn = min(used, key=lambda i: (used[i] + 1) / weights[i])
        if turn not in queues:
            queues[turn] = iter(sketches[turn].queue())
        program = next(queues[turn], None)
        if program is None:
            del used[turn]
        else:
            used[turn] += 1
            yield program


class _Candidates:
    """The candidates of one sketch."""

    def __init__(self, question: Question, example: Program, parts: Parts, rng: np.random.Generator) -> None:
        self._question, self._example, self._parts, self._rng = question, example, parts, rng
        self._space: Space = question.space
        self._points: Points = self._space.points(example)
        self._signature = signature(example.sketch)
        # The example of one of our sketches was chosen by a rule; that of a stock sketch is random.
        self._is_ours = example in question.space.own
        self._own = [m for m in question.measured if m.program.sketch.text == example.sketch.text]
        # How many times as long as the operator's best program one of this sketch should take, before any is measured:
        # as it usually is, and as it was for relatives.
        self.usual = 1.0 if self._is_ours else _STOCK
        self.inherited: float | None = None
        self._worth_to_distilled: list[float] = []
        self._distilled = self._nearest_distilled() if parts.relatives else []
        self._kin = self._relatives() if parts.relatives else []
        finite = [m.seconds for m in self._own if math.isfinite(m.seconds)]
        self.best = min(finite, default=math.inf)
        if self._own and not finite:
            self.inherited = None  # it does not work here

    def queue(self) -> list[Program]:
        """Programs of this sketch, best predicted first, with some random ones for exploration."""
        transferred = self._transferred()
        posterior = self._posterior(transferred)
        count = min(_MOST_DRAWN, _DRAWN_FOR_EACH * self._question.count)
        drawn = self._legal(posterior.sample(count, self._rng))
        if not drawn:
            return [self._program(decisions, origin) for decisions, origin in transferred]
        guess = self._guess()
        if guess is None:
            order = list(range(len(drawn)))
        else:
            scores = guess.score(self._points, [decisions for decisions, _ in drawn])
            order = _with_random(np.argsort(-scores, kind="stable"), self._rng)
            if transferred:
                # Similarity alone orders them badly.
                carried = guess.score(self._points, [decisions for decisions, _ in transferred])
                transferred = [transferred[i] for i in np.argsort(-carried, kind="stable")]
        programs = [self._program(*drawn[i]) for i in order]
        good = [(self._example.decisions, "default")] if self._is_ours else []
        first = [self._program(decisions, origin) for decisions, origin in self._new([*good, *transferred])]
        room = max(1, int(_MOST_CARRIED * self._question.count))
        return first[:room] + programs

    def _transferred(self) -> list[tuple[Decisions, str]]:
        """The best programs of relatives, adapted in every way, those of the most similar relative first."""
        transferred: dict[Decisions, str] = {}
        ways: list[Propagation] = [how for how in PROPAGATIONS if how != "random" and getattr(self._parts, how)]
        ways = ways or ["random"]
        for rank in range(_PROGRAMS_OF_A_RELATIVE):
            for relative in self._kin:
                if rank < len(relative.measured):
                    program = relative.measured[rank].program
                    for how in ways:
                        values = propagate(
                            program.sketch.points(program.decisions), program.decisions, self._points, how, self._rng
                        )
                        if self._is_possible(values):
                            transferred.setdefault(values, "distilled" if relative.distilled else how)
        return self._legal(list(transferred.items()))

    def _is_possible(self, decisions: Decisions) -> bool:
        try:
            check(self._points, decisions)
        except IllegalDecisionError:
            return False
        return True

    def _posterior(self, transferred: Sequence[tuple[Decisions, str]]) -> Posterior:
        # Earlier ones come from more similar relatives and better programs.
        centres = [Centre(values, 0.85**n, origin) for n, (values, origin) in enumerate(transferred)]
        if self._parts.random or not centres:
            for _ in range(2):
                centres.append(Centre(self._space.draw_decisions(self._example, self._rng), 0.1, "random"))
        centres.append(Centre(self._example.decisions, 1.0 if self._is_ours else 0.1, "default"))
        posterior = Posterior(self._points, centres)
        if self._parts.posterior:
            posterior.update([(m.program.decisions, m.seconds) for m in self._own])
        return posterior

    def _guess(self) -> Guess | None:
        if not self._parts.guess:
            return None
        seed = self._question.seed % 2**31
        # One program alone says nothing about which are faster.
        enough = len(self._own) > (self._question.priors is not None)
        rows = [_rows(self._own, own=True)] if enough else []
        if self._parts.pretraining:
            near = [relative for relative in self._kin if not relative.distilled]
            # Of these also the distant ones: the more there are, the better the trees rank an operator not seen before.
            rows += [_rows(relative.measured) for relative in (*near, *self._distilled)]
        limits = self._space.limits(self._example.sketch)
        return Guess.fit(rows, seed, None if limits is None else limits.occupancy)

    def _relatives(self) -> list[Relative]:
        """Relatives with programs of this signature, the most similar first, each one's fastest program first."""
        kin, worth = [], []
        for relative in self._question.relatives:
            fitting = [m for m in relative.measured if signature(m.program.sketch) == self._signature]
            if any(math.isfinite(m.seconds) for m in fitting):
                fitting.sort(key=lambda m: m.seconds)
                worth.append(fitting[0].seconds / min(m.seconds for m in relative.measured))
                kin.append(replace(relative, measured=fitting))
        # A relative of which only the default program has been measured has nothing to lend yet.
        kin = [relative for relative in kin if len(relative.measured) > 1]
        self.inherited = min([*worth, *self._worth_to_distilled], default=None)
        nearest = sorted(kin, key=lambda relative: -relative.similarity)[:_MOST_RELATIVES]
        return nearest + self._distilled[:_MOST_DISTILLED]

    def _nearest_distilled(self) -> list[Relative]:
        """Operators of the priors with programs of this signature, the most similar first."""
        if (priors := self._question.priors) is None:
            return []
        found = priors.nearest(self._example.sketch, tile_extents(self._points))
        self._worth_to_distilled = [neighbour.slower for neighbour in found[:_MOST_DISTILLED]]
        return [self._as_relative(neighbour) for neighbour in found]

    def _as_relative(self, neighbour: Neighbour) -> Relative:
        name, sketch = neighbour.operator.name, self._example.sketch
        measured = [Measured(Program(name, sketch, p.decisions, "distilled"), p.seconds) for p in neighbour.programs]
        return Relative(name, neighbour.similarity, measured, distilled=True)

    def _legal(self, drawn: Sequence[tuple[Decisions, str]]) -> list[tuple[Decisions, str]]:
        """Each of them once, without those that make too much code or that the GPU cannot hold."""
        each: dict[Decisions, str] = {}
        for decisions, origin in drawn:
            each.setdefault(decisions, origin)
        allowed = self._space.allowed(self._example.sketch, list(each))
        return [pair for pair, is_allowed in zip(each.items(), allowed, strict=True) if is_allowed]

    def _new(self, drawn: Sequence[tuple[Decisions, str]]) -> list[tuple[Decisions, str]]:
        tried = {m.program.decisions for m in self._own}
        return [(decisions, origin) for decisions, origin in drawn if decisions not in tried]

    def _program(self, decisions: Decisions, origin: str) -> Program:
        return replace(self._example, decisions=decisions, origin=f"diffusion:{origin}")


def _rows(measured: Sequence[Measured], *, own: bool = False) -> Rows:
    first = measured[0].program
    decisions = [m.program.decisions for m in measured]
    return Rows(first.sketch.points(first.decisions), decisions, [m.seconds for m in measured], own)


def _realize(
    space: Space, programs: Iterable[Program], known: Collection[object]
) -> Iterator[tuple[Program, Realized | None]]:
    """Replay programs that are not `known`, in their order. In half precision some at a time: schedules for tensor
    cores take longer, and TVM replays them without Python's lock.
    """
    new = (program for program in programs if program.identity not in known)
    if not (space.target.gpu and space.target.is_half):
        for program in new:
            yield program, space.realize(program)
        return
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        while some := list(islice(new, _AT_ONCE)):
            yield from zip(some, threads.map(space.realize, some), strict=True)


def _sketch_weights(best: Sequence[float], inherited: Sequence[float | None], usual: Sequence[float]) -> list[float]:
    """The weight of each sketch in the share of proposals, from its seconds, or what relatives made of it, or what is
    usual. Where neither measurements nor relatives say anything, all weigh the same.
    """
    leader = min(best, default=math.inf)
    if not math.isfinite(leader) and all(factor is None for factor in inherited):
        return [1.0] * len(best)
    slower = [
        seconds / leader if math.isfinite(seconds) else otherwise if factor is None else factor
        for seconds, factor, otherwise in zip(best, inherited, usual, strict=True)
    ]
    return [max(0.02, factor**-_STEEPNESS) for factor in slower]


def _with_random(ranked: Iterable[int], rng: np.random.Generator) -> list[int]:
    """The ranking, with a random one inserted at regular places."""
    left, mixed = list(map(int, ranked)), []
    while left:
        at = int(rng.integers(len(left))) if rng.random() < _EXPLORING else 0
        mixed.append(left.pop(at))
    return mixed
