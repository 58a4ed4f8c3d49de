"""Who can learn from whom: the families of a session's operators, and operators that other sessions tuned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from slipstream.diffusion.families import Family, Member, cosine, cosines, extents, find_families, tile_extents
from slipstream.diffusion.signature import signature
from slipstream.search.types import Measured, Relative
from slipstream.session.history import Tracks
from slipstream.session.operator_trials import Room
from slipstream.session.stored_programs import StoredPrograms
from slipstream.store import Store, TrialRecord

_REMEMBERED = 24  # programs of an operator of another session
_MOST_ELDERS = 4
_MOST_KIN = 24


class Kinship:
    """The families of a session, and what its operators have heard of each other."""

    def __init__(self, rooms: Mapping[str, Room], families: str) -> None:
        self._rooms = rooms
        self.families = find_families([Member(room.operator, room.space) for room in rooms.values()], families)
        self._near = _nearest(rooms, self.families)
        self._following = {f.prior: [key for key in f.members if key != f.prior] for f in self.families}
        self._elders: Mapping[str, Sequence[Relative]] = {}
        self._heard: dict[str, dict[str, float]] = {}

    def similar(self, key: str) -> tuple[str, ...]:
        """The others of an operator's family, the most similar first."""
        return tuple(other for other, _ in self._near[key])

    def find_elders(self, store: Store, hardware: str) -> None:
        """Let operators that other sessions tuned on this very hardware be relatives, too."""
        self._elders = _elders_of(self._rooms, store, hardware)

    def relatives(self, key: str) -> list[Relative]:
        """The family as it stands: its members in this model, and what the store knows of others."""
        near = [Relative(other, likeness, self._rooms[other].known()) for other, likeness in self._near[key]]
        return near + list(self._elders.get(key, ()))

    def followers(self, key: str, tracks: Tracks) -> dict[str, float]:
        """Those who wait for an operator, if it is their prior, with what each takes in one run of the model."""
        following = (tracks.by_key[other] for other in self._following.get(key, ()))
        return {f.key: f.latency for f in following if not f.slot_ends and math.isfinite(f.latency)}

    def hear(self, key: str, tracks: Tracks) -> None:
        """An operator is about to be tuned with all that its relatives know by now."""
        bests = {other: tracks.by_key[other].history[-1] for other in self.similar(key)}
        self._heard[key] = {other: best for other, best in bests.items() if math.isfinite(best)}

    def news(self, key: str, tracks: Tracks) -> float:
        """By what share a relative has improved since this operator last heard of it."""
        heard = self._heard.get(key, {})
        return max((1 - tracks.by_key[other].history[-1] / best for other, best in heard.items()), default=0.0)


def _nearest(rooms: Mapping[str, Room], families: list[Family]) -> dict[str, list[tuple[str, float]]]:
    """For each operator the others of its family and how similar they are, the most similar first."""
    near: dict[str, list[tuple[str, float]]] = {}
    for family in families:
        shapes = [extents(Member(rooms[key].operator, rooms[key].space)) for key in family.members]
        likeness = cosines(shapes)
        for row, key in enumerate(family.members):
            nearest = sorted((-likeness[row, n], other) for n, other in enumerate(family.members) if n != row)
            near[key] = [(other, -distance) for distance, other in nearest[:_MOST_KIN]]
    return near


def _elders_of(rooms: Mapping[str, Room], store: Store, hardware: str) -> dict[str, list[Relative]]:
    """Operators tuned earlier on this very hardware whose decisions fit one of ours, the most similar first."""
    sizes = {
        key: {signature(example.sketch): tile_extents(room.space.points(example)) for example in room.space.sketches}
        for key, room in rooms.items()
    }
    found: dict[str, list[Relative]] = {key: [] for key in rooms}
    programs = StoredPrograms(store)
    for operator in sorted(set(store.counts(hardware)) - set(rooms)):
        remembered = _remembered(programs, store.top(operator, hardware, _REMEMBERED))
        for key in rooms:
            fitting = (m.program for m in remembered if signature(m.program.sketch) in sizes[key])
            if (best := next(fitting, None)) is not None:
                size = tile_extents(best.sketch.points(best.decisions))
                likeness = cosine(sizes[key][signature(best.sketch)], size)
                found[key].append(Relative(operator, likeness, remembered))
    return {key: sorted(list_, key=lambda r: -r.similarity)[:_MOST_ELDERS] for key, list_ in found.items()}


def _remembered(programs: StoredPrograms, trials: Iterable[TrialRecord]) -> list[Measured]:
    found = ((programs.get(trial.operator, trial.program), trial.median) for trial in trials)
    return [Measured(program, seconds) for program, seconds in found if program is not None]
