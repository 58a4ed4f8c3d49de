"""Tuning several operators at once: while the programs of some are built and timed, the next ones are thought of.

For a measurer that builds beside running, as that of a GPU does: taking turns would leave its cores idle while the
session searches, and the search idle while they build. An operator has at most one slot at a time, so that what it
proposes next still follows from all it has measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slipstream.measure.types import Candidate
from slipstream.program.space import Realized

if TYPE_CHECKING:
    from slipstream.session.loop import Session


class _Slots:
    """The slots under way: whose each is, its programs, and how many of them are still to be measured."""

    def __init__(self) -> None:
        self._under_way: dict[int, tuple[str, list[Realized]]] = {}
        self._left: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def operators(self) -> set[str]:
        return {key for key, _ in self._under_way.values()}

    def add(self, slot: int, key: str, realized: list[Realized]) -> None:
        self._under_way[slot] = (key, realized)
        self._left[slot] = len(realized)

    def measured(self, slot: int) -> bool:
        """One more of a slot is measured: was it the last?"""
        self._left[slot] -= 1
        return not self._left[slot]

    def close(self, slot: int) -> tuple[str, list[Realized]]:
        del self._left[slot]
        return self._under_way.pop(slot)


def run_in_flight(session: Session) -> None:
    """Tune until the budget is spent or nothing improves."""
    slots = _Slots()
    results = session.measurer.measure(_candidates(session, slots))
    started = session.elapsed
    try:
        for measurement in results:
            slot = session.take(measurement)
            if slots.measured(slot):
                session.finish(slot, *slots.close(slot))
            session.snapshot.split["run"] = session.snapshot.split.get("run", 0.0) + measurement.run_seconds
            if session.over() is not None:
                break
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()
        split = session.snapshot.split
        busy = sum(split.get(name, 0.0) for name in ("run", "search", "schedule", "train", "store"))
        split["build"] = max(split.get("build", 0.0), session.elapsed - started - busy)


def _candidates(session: Session, slots: _Slots) -> Iterator[Candidate | None]:
    """Programs to measure, each slot proposed when its first program can be built; None while all must wait."""
    while session.over() is None:
        if len(slots) >= session.settings.in_flight or session.slot_size() <= 0:
            yield None
            continue
        key = session.pick(slots.operators)
        if key is None:
            if not len(slots):
                return
            yield None
            continue
        slot, realized = session.propose(key)
        if not realized:
            session.finish(slot, key, [])
            continue
        slots.add(slot, key, realized)
        for position, candidate in enumerate(realized):
            yield Candidate(key, candidate.text, f"{slot}:{position}")
