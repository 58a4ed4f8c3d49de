"""Who can learn from whom: the families of a session's operators, and operators that other sessions tuned."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.diffusion.families import Family, Member, cosine, cosines, extents, find_families, tile_extents
from slipstream.diffusion.signature import signature
from slipstream.program.decisions import from_json
from slipstream.program.sketch import Sketch
from slipstream.program.space import Program
from slipstream.search.types import Measured, Relative
from slipstream.session.loop import Room
from slipstream.store import Store

_REMEMBERED = 24  # programs of an operator of another session
_MOST_ELDERS = 4
_MOST_KIN = 24


def families_of(rooms: Mapping[str, Room], mode: str) -> list[Family]:
    return find_families([Member(room.operator, room.space) for room in rooms.values()], mode)


def kin_of(rooms: Mapping[str, Room], families: list[Family]) -> dict[str, list[tuple[str, float]]]:
    """For each operator the others of its family and how similar they are, the most similar first."""
    kin: dict[str, list[tuple[str, float]]] = {}
    for family in families:
        shapes = [extents(Member(rooms[key].operator, rooms[key].space)) for key in family.members]
        likeness = cosines(shapes)
        for row, key in enumerate(family.members):
            nearest = sorted((-likeness[row, n], other) for n, other in enumerate(family.members) if n != row)
            kin[key] = [(other, -distance) for distance, other in nearest[:_MOST_KIN]]
    return kin


def elders_of(rooms: Mapping[str, Room], store: Store, hardware: str) -> dict[str, list[Relative]]:
    """Operators tuned earlier on this very hardware whose decisions fit one of ours, the most similar first."""
    sizes = {
        key: {signature(example.sketch): tile_extents(room.space.points(example)) for example in room.space.sketches}
        for key, room in rooms.items()
    }
    found: dict[str, list[Relative]] = {key: [] for key in rooms}
    for operator in sorted(set(store.counts(hardware)) - set(rooms)):
        remembered = _remembered(store, operator, hardware)
        for key in rooms:
            fitting = (m.program for m in remembered if signature(m.program.sketch) in sizes[key])
            if (best := next(fitting, None)) is not None:
                size = tile_extents(best.sketch.points(best.decisions))
                likeness = cosine(sizes[key][signature(best.sketch)], size)
                found[key].append(Relative(operator, likeness, remembered))
    return {key: sorted(list_, key=lambda r: -r.similarity)[:_MOST_ELDERS] for key, list_ in found.items()}


def _remembered(store: Store, operator: str, hardware: str) -> list[Measured]:
    programs = []
    for trial in store.top(operator, hardware, _REMEMBERED):
        text = store.sketch(trial.program.sketch)
        if text is not None:
            sketch, decisions = Sketch(text), from_json(trial.program.decisions)
            programs.append(Measured(Program(operator, sketch, decisions, trial.program.origin), trial.median))
    return programs
