"""Tuning several operators at once: while the programs of some are built and timed, the next ones are thought of.

For a measurer that builds beside running, as that of a GPU does: taking turns would leave its cores idle while the
session searches, and the search idle while they build. An operator has at most one slot at a time, so that what it
proposes next still follows from all it has measured. The next slot is thought of in a thread: TVM, where most of that
time goes, lets others run, and so results are taken in and builders fed meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from slipstream.measure.types import Candidate
from slipstream.program.space import Realized
from slipstream.search.types import Question

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


class _Ahead:
    """The next slot, being thought of; at most one. It is opened when its programs are there, and only then kept."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1, "propose")
        self._asked: tuple[int, str, Future[tuple[list[Realized], float]]] | None = None

    def __len__(self) -> int:
        return int(self._asked is not None)

    def ask(self, key: str) -> None:
        slot, question = self._session.ask(key)
        self._asked = slot, key, self._thread.submit(self._propose, question)

    def _propose(self, question: Question) -> tuple[list[Realized], float]:
        started = time.monotonic()
        realized = self._session.search.propose(question)
        for one in realized:
            _ = one.text  # a third of the work, and kept
        return realized, time.monotonic() - started

    def open(self, *, wait: bool) -> tuple[int, str, list[Realized]] | None:
        """Open the slot; None if there is none or, unless told to `wait`, it is not there yet."""
        if self._asked is None or not (wait or self._asked[2].done()):
            return None
        slot, key, answer = self._asked
        started = time.monotonic()
        realized, searched = answer.result()
        self._session.spent("search", time.monotonic() - started)
        self._session.open(slot, key, realized, searched)
        self._asked = None
        return slot, key, realized

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


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
    """Programs to measure, as their slots are opened; None while all must wait."""
    ahead, waiting = _Ahead(session), deque[Candidate]()
    try:
        while session.over() is None:
            _think_ahead(session, slots, ahead)
            # With nothing under way nobody would ask again; a cost model must not learn while it is asked.
            opened = None if waiting else ahead.open(wait=not len(slots) or session.search.uses_score)
            if opened is not None:
                slot, key, realized = opened
                if not realized:
                    session.finish(slot, key, [])
                    continue
                slots.add(slot, key, realized)
                waiting.extend(Candidate(key, one.text, f"{slot}:{n}") for n, one in enumerate(realized))
            elif not waiting and not len(slots) and not len(ahead):
                return
            else:
                yield waiting.popleft() if waiting else None
    finally:
        ahead.close()


def _think_ahead(session: Session, slots: _Slots, ahead: _Ahead) -> None:
    """Begin to think of another slot, if there may be one and nobody is thinking yet."""
    if len(ahead) or len(slots) >= session.settings.in_flight or session.slot_size() <= 0:
        return
    key = session.pick(slots.operators)
    if key is not None:
        ahead.ask(key)
