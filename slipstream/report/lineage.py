"""Families: what each operator's program has in common with that of its family's prior, decision by decision."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

from slipstream.diffusion.signature import signature
from slipstream.program.decisions import Decisions, IllegalDecisionError, from_json
from slipstream.program.sketch import Sketch
from slipstream.report.schedule_code import ScheduleCode, say
from slipstream.session.state_names import FAMILIES
from slipstream.session.stored_history import StoredHistory


def families(
    stored: StoredHistory,
    chosen: Mapping[int, tuple[str, str]],
    sketches: Mapping[str, tuple[Sketch, ScheduleCode]],
    untuned: Container[int],
) -> list[dict[str, Any]]:
    """The session's families, the largest first, each with its prior: the one that was tuned first. Families of one are
    left out.

    `chosen` is the program of each operator by its place: digest of the sketch and decisions. Those in `untuned` still
    have their default program: what it has in common with the prior's was not taken from it.
    """
    places = {key: n for n, key in enumerate(stored.history.operators)}
    first_slots = {
        places[key]: min(slot.number for slot in one.slots if not slot.default)
        for key, one in stored.history.operators.items()
        if any(not slot.default for slot in one.slots)
    }
    found = []
    for family in stored.saved.get(FAMILIES, []):
        members = {places[key]: likeness for key, likeness in family["similarity"].items() if key in places}
        if len(members) < 2:
            continue
        prior = min(members, key=lambda n: (first_slots.get(n, math.inf), -members[n]))
        others = sorted((n for n in members if n != prior), key=lambda n: -members[n])
        found.append(
            {
                "prior": prior,
                "members": [
                    {
                        "operator": n,
                        "similarity": round(members[n], 4),
                        "untuned": n in untuned,
                        **compare(None if n in untuned else chosen.get(prior), chosen.get(n), sketches),
                    }
                    for n in [prior, *others]
                ],
            }
        )
    return sorted(found, key=lambda family: -len(family["members"]))


def compare(
    prior: tuple[str, str] | None,
    own: tuple[str, str] | None,
    sketches: Mapping[str, tuple[Sketch, ScheduleCode]],
) -> dict[str, Any]:
    """Each decision's value in `own`, and whether it is the prior's.

    `equal_to_prior` is "all" if the values are equal, "inner" if the innermost factors are and only the outermost
    differs, as it must where extents differ; "fixed" if there was nothing to decide, "" if they differ. None where the
    programs are of different kinds.
    """
    if own is None or own[0] not in sketches:
        return {"values": [], "labels": [], "equal_to_prior": None}
    sketch, code = sketches[own[0]]
    mine = _decisions(own[1])
    result: dict[str, Any] = {
        "labels": [decided.label for decided in code.decided],
        "values": [say(decided, value) for decided, value in zip(code.decided, mine, strict=False)],
        "equal_to_prior": None,
    }
    if prior is None or prior[0] not in sketches:
        return result
    theirs = _decisions(prior[1])
    if signature(sketches[prior[0]][0]) == signature(sketch) and len(theirs) == len(mine):
        result["equal_to_prior"] = [_equality(a, b) for a, b in zip(theirs, mine, strict=True)]
    return result


def _equality(prior: Any, own: Any) -> str:
    if isinstance(own, tuple) and max(own, default=1) == 1:
        return "fixed"  # a loop of one iteration
    if prior == own:
        return "all"
    tiles = isinstance(prior, tuple) and isinstance(own, tuple)
    return "inner" if tiles and len(prior) == len(own) > 1 and prior[1:] == own[1:] else ""


def _decisions(text: str) -> Decisions:
    try:
        return from_json(text)
    except IllegalDecisionError:
        return ()
