"""Several operators' slots at once, on a measurer that simulates cores: nothing is lost, counted twice or starved."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slipstream.cost.incremental import Incremental
from slipstream.measure.types import Candidate, Measurement
from slipstream.session.budget import Budget
from slipstream.session.cost_learning import CostLearning
from slipstream.session.events import Event, Snapshot
from slipstream.store import Store
from tests.session.synthetic import Scored, SyntheticMeasurer, make_session, play

QUICK: dict[str, Any] = {"slot_trials": 4, "patience_trials": 1000, "in_flight": 3}


class ManyCores(SyntheticMeasurer):
    """SIMULATES a measurer that has up to ten programs in hand and takes None for "ask again"."""

    def measure(self, programs: Iterable[Candidate | None]) -> Iterator[Measurement]:
        source, in_hand = iter(programs), deque[Candidate]()
        exhausted = False
        while True:
            while not exhausted and len(in_hand) < 10:
                program = next(source, "end")
                exhausted = program == "end"
                if not isinstance(program, Candidate):
                    break
                in_hand.append(program)
            if not in_hand:
                return
            yield from super().measure([in_hand.popleft()])


def test_slots_overlap_and_every_program_is_measured_once(tmp_path: Path) -> None:
    open_slots, most = set[int](), 0
    busy = Counter[str]()

    def watch(event: Event, snapshot: Snapshot) -> None:
        nonlocal most
        if event.kind == "slot":
            operator = str(event.data["operator"])
            busy[operator] += 1
            assert busy[operator] == 1, "an operator had two slots at a time"
            open_slots.add(int(str(event.data["slot"])))
            most = max(most, len(open_slots))
        elif event.kind == "slot_done":
            busy[str(event.data["operator"])] -= 1
            open_slots.discard(int(str(event.data["slot"])))

    measurer = ManyCores()
    session, reason = play(tmp_path / "s.db", Budget(trials=40), measurer, watcher=watch, **QUICK)
    assert reason == "all trials are used"
    assert 2 <= most <= 3
    assert not open_slots
    labels = [candidate.label for candidate in measurer.measured]
    assert len(labels) == len(set(labels)) == session.history.trials
    with Store.open(tmp_path / "s.db", create=False) as store:
        (record,) = store.sessions()
        assert all(slot.finished for slot in store.slots(record.id))
        assert sum(1 for _ in store.trials(session=record.id)) == len(labels)


@pytest.mark.parametrize("searches", [1, 3])
def test_trials_are_counted_before_they_are_measured(searches: int, tmp_path: Path) -> None:
    session, reason = play(tmp_path / "s.db", Budget(trials=25), ManyCores(), **QUICK, searches=searches)
    assert reason == "all trials are used"
    assert session.history.trials == 25


@pytest.mark.parametrize("searches", [1, 3])
def test_what_was_in_flight_goes_on(searches: int, tmp_path: Path) -> None:
    play(tmp_path / "s.db", Budget(trials=12), ManyCores(), **QUICK, searches=searches)
    seen = {"trials": 0}

    def stop() -> bool:
        return seen["trials"] >= 8

    def count(event: Event, snapshot: Snapshot) -> None:
        seen["trials"] += event.kind == "trial"

    _, reason = play(tmp_path / "s.db", Budget(trials=36), ManyCores(), stop=stop, watcher=count)
    assert reason == "interrupted"
    measurer = ManyCores()
    session, reason = play(tmp_path / "s.db", Budget(trials=36), measurer)
    assert session.history.trials == 36
    assert reason == "all trials are used"


class LastFirst(SyntheticMeasurer):
    """SIMULATES a measurer that waits for the programs of two slots and is done with the last one first."""

    def measure(self, programs: Iterable[Candidate | None]) -> Iterator[Measurement]:
        source, in_hand = iter(programs), list[Candidate]()
        while True:
            patience = 40
            while len(in_hand) < 8 and patience:
                program = next(source, "end")
                if isinstance(program, Candidate):
                    in_hand.append(program)
                elif program is None:
                    patience -= 1
                    time.sleep(0.01)
                else:
                    break
            if not in_hand:
                return
            yield from super().measure([in_hand.pop()])


def test_after_a_kill_the_cost_model_has_learned_every_slot_once(tmp_path: Path) -> None:
    """A slot that ended before an earlier one must neither be forgotten nor learned again."""
    settings = {**QUICK, "scheduler": "round_robin", "cost": "incremental", "search": "evolutionary"}
    path, ends = tmp_path / "s.db", list[int]()

    def stop() -> bool:
        return any(later < earlier for earlier, later in pairwise(ends)) and len(ends) > 3

    def watch(event: Event, snapshot: Snapshot) -> None:
        if event.kind == "slot_done":
            ends.append(int(str(event.data["slot"])))

    first, _ = play(path, Budget(trials=80), LastFirst(), stop=stop, watcher=watch, proposer=Scored(), **settings)
    assert any(later < earlier for earlier, later in pairwise(ends)), "no slot ended out of order"
    assert first.search.uses_score
    learned = []

    class Counting(Incremental):
        def learn(self, examples: Any) -> None:
            learned.extend(examples)
            super().learn(examples)

    with Store.open(path) as store:
        (record,) = store.sessions()
        finished = [slot for slot in store.slots(record.id) if slot.finished]
        resumed = make_session(store, record.id, LastFirst(), Budget(trials=80), stop=lambda: True, proposer=Scored())
        resumed.cost = Counting(0, 1)
        resumed._learning = CostLearning(resumed.cost, store, record.id, resumed._clock)
        resumed.run()
        assert {n for n in range(100) if resumed._learning.has_learned(n)} == {slot.slot for slot in finished}
        known = len(resumed.cost._examples)
        whole = CostLearning(Counting(0, 1), store, record.id, resumed._clock)
        learned.clear()
        for slot in finished:
            whole.learn(slot.slot, resumed.operators[slot.operator], resumed._stored(slot).values())
        assert known == len(learned) > 0
