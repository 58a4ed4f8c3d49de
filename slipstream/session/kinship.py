"""Who can learn from whom: the families of a session's operators, and operators that other sessions tuned."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.diffusion.families import Family, Member, cosine, extents, find_families, tile_extents
from slipstream.diffusion.signature import signature
from slipstream.program.decisions import from_json
from slipstream.program.sketch import Sketch
from slipstream.program.space import Program
from slipstream.search.types import Measured, Relative
from slipstream.session.loop import Room
from slipstream.store import Store

_REMEMBERED = 24  # programs of an operator of another session
_MOST_ELDERS = 4


def families_of(rooms: Mapping[str, Room], mode: str) -> list[Family]:
    return find_families([Member(room.operator, room.space) for room in rooms.values()], mode)


def kin_of(rooms: Mapping[str, Room], families: list[Family]) -> dict[str, list[tuple[str, float]]]:
    """For each operator the others of its family and how similar they are."""
    shapes = {key: extents(Member(room.operator, room.space)) for key, room in rooms.items()}
    return {
        key: [(other, cosine(shapes[key], shapes[other])) for other in family.members if other != key]
        for family in families
        for key in family.members
    }


def elders_of(rooms: Mapping[str, Room], store: Store, hardware: str) -> dict[str, list[Relative]]:
    """Operators tuned earlier on this very hardware whose decisions fit one of ours, the most similar first."""
    signatures = {key: {signature(example.sketch) for example in room.space.sketches} for key, room in rooms.items()}
    sizes = {key: tile_extents(room.space.points(room.space.default)) for key, room in rooms.items()}
    found: dict[str, list[Relative]] = {key: [] for key in rooms}
    for operator in sorted(set(store.counts(hardware)) - set(rooms)):
        remembered = _remembered(store, operator, hardware)
        if not remembered:
            continue
        fits = {signature(m.program.sketch) for m in remembered}
        best = remembered[0].program
        size = tile_extents(best.sketch.points(best.decisions))
        for key in rooms:
            if signatures[key] & fits:
                found[key].append(Relative(operator, cosine(sizes[key], size), remembered))
    return {key: sorted(list_, key=lambda r: -r.similarity)[:_MOST_ELDERS] for key, list_ in found.items()}


def _remembered(store: Store, operator: str, hardware: str) -> list[Measured]:
    programs = []
    for trial in store.top(operator, hardware, _REMEMBERED):
        text = store.sketch(trial.program.sketch)
        if text is not None:
            sketch, decisions = Sketch(text), from_json(trial.program.decisions)
            programs.append(Measured(Program(operator, sketch, decisions, trial.program.origin), trial.median))
    return programs
