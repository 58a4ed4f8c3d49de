"""Which operators learn from which: the families of a session, and similar operators of earlier sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from slipstream.diffusion.distilled import Priors
from slipstream.diffusion.families import Family, Member, extents, find_families
from slipstream.diffusion.signature import signature
from slipstream.diffusion.similarity import similarities, similarity
from slipstream.program.decisions import tile_extents
from slipstream.search.types import Measured, Relative
from slipstream.session.history import INCONCLUSIVE_FAILURES, History
from slipstream.session.operator_trials import OperatorTrials
from slipstream.session.stored_programs import StoredPrograms
from slipstream.store import Store, TrialRecord

_MOST_PROGRAMS = 48  # of an operator of another session
_FASTEST = 24  # of these the fastest that fits tells how similar the operator is
_MOST_STORED = 4
_MOST_SIMILAR = 24

Operators = Mapping[str, OperatorTrials]


class Families:
    """The families of `operators`, found as `how` says. `stored` are relatives from earlier sessions, `priors` (by
    dtype) distilled ones for operators that have none of these.
    """

    def __init__(
        self,
        operators: Operators,
        how: str,
        stored: Mapping[str, Sequence[Relative]] | None = None,
        priors: Callable[[str], Priors] | None = None,
    ) -> None:
        self._operators = operators
        self._stored = stored or {}
        self._priors: dict[str, Priors] = {}
        self.nothing_fits = False
        """Whether there are priors of operators like these, and none of them has the sketches of today."""
        if priors is not None:
            self._take_priors(cache(priors))
        self.families = find_families([Member(one.operator, one.space) for one in operators.values()], how)
        self._near = _nearest(operators, self.families)

    def similar(self, key: str) -> tuple[str, ...]:
        """The others of an operator's family, the most similar first."""
        return tuple(other for other, _ in self._near[key])

    def relatives(self, key: str) -> list[Relative]:
        """What is known of an operator's family now: its members in this model, and those of earlier sessions."""
        near = [Relative(other, likeness, self._operators[other].known()) for other, likeness in self._near[key]]
        return near + list(self._stored.get(key, ()))

    def priors(self, key: str) -> Priors | None:
        """Distilled priors of an operator that no earlier session has tuned relatives of."""
        return self._priors.get(key)

    def has_lenders(self, key: str, history: History) -> bool:
        """Whether there are programs to carry over to an operator that were searched for: by this session for one of
        its family, by an earlier session, or distilled.
        """
        searched = any(history.operators[other].slot_ends for other in self.similar(key))
        return searched or bool(self._stored.get(key)) or key in self._priors

    def _take_priors(self, priors: Callable[[str], Priors]) -> None:
        cold = [one for key, one in self._operators.items() if not self._stored.get(key) and one.operator.shapes]
        found = [(one, priors(one.operator.shapes[0][1])) for one in cold]
        self._priors = {one.operator.key: own for one, own in found if _cover(own, one)}
        alike = any(one.operator.kinds[:1] and one.operator.kinds[0] in own.kinds for one, own in found)
        self.nothing_fits = alike and not self._priors


def _cover(priors: Priors, one: OperatorTrials) -> bool:
    """Whether priors have programs of an operator's own sketches. On a GPU the default program may decide nothing:
    there it takes all sketches to tell.
    """
    decides = one.space.target.gpu is None or bool(one.space.default.decisions)
    examples = (one.space.default, one.space.direct) if decides else one.space.sketches
    return any(priors.covers(example.sketch) for example in examples)


def _nearest(operators: Operators, families: list[Family]) -> dict[str, list[tuple[str, float]]]:
    """For each operator the others of its family and how similar they are, the most similar first."""
    near: dict[str, list[tuple[str, float]]] = {}
    for family in families:
        shapes = [extents(Member(operators[key].operator, operators[key].space)) for key in family.members]
        likeness = similarities(shapes)
        for row, key in enumerate(family.members):
            nearest = sorted((-likeness[row, n], other) for n, other in enumerate(family.members) if n != row)
            near[key] = [(other, -distance) for distance, other in nearest[:_MOST_SIMILAR]]
    return near


def stored_relatives(operators: Operators, store: Store, hardware: str) -> dict[str, list[Relative]]:
    """Operators tuned earlier on this very hardware whose decisions fit one of ours, the most similar first."""
    others = sorted(set(store.counts(hardware)) - set(operators))
    if not others:
        return {}
    sizes = {
        key: {signature(example.sketch): tile_extents(one.space.points(example)) for example in one.space.sketches}
        for key, one in operators.items()
    }
    near: dict[str, list[tuple[float, str]]] = {key: [] for key in operators}
    programs = StoredPrograms(store)
    for other in others:
        known = _measured(programs, store.top(other, hardware, _FASTEST))
        for key in operators:
            fitting = (m.program for m in known if signature(m.program.sketch) in sizes[key])
            if (best := next(fitting, None)) is not None:
                size = tile_extents(best.sketch.points(best.decisions))
                near[key].append((similarity(sizes[key][signature(best.sketch)], size), other))
    nearest = {key: sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:_MOST_STORED] for key, pairs in near.items()}
    # Slow and failed ones too: they say what to avoid.
    lent = {
        other: _measured(programs, store.examples(other, hardware, _MOST_PROGRAMS))
        for other in {other for pairs in nearest.values() for _, other in pairs}
    }
    return {key: [Relative(other, likeness, lent[other]) for likeness, other in nearest[key]] for key in operators}


def _measured(programs: StoredPrograms, trials: Iterable[TrialRecord]) -> list[Measured]:
    conclusive = (trial for trial in trials if trial.failure not in INCONCLUSIVE_FAILURES)
    found = ((programs.get(trial.operator, trial.program), trial.median) for trial in conclusive)
    return [Measured(program, seconds) for program, seconds in found if program is not None]
