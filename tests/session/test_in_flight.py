"""Several operators' slots at once, on a measurer that simulates cores: nothing is lost, counted twice or starved."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from slipstream.measure.types import Candidate, Measurement
from slipstream.session.budget import Budget
from slipstream.session.events import Event, Snapshot
from slipstream.store import Store
from tests.session.synthetic import SyntheticMeasurer, make_session, open_session, play

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
    session, reason = play(tmp_path / "s.db", Budget(trials=60), measurer, watcher=watch, **QUICK)
    assert reason == "all trials are used"
    assert 2 <= most <= 3
    assert not open_slots
    labels = [candidate.label for candidate in measurer.measured]
    assert len(labels) == len(set(labels)) == session.tracks.trials
    with Store.open(tmp_path / "s.db", create=False) as store:
        (record,) = store.sessions()
        assert all(slot.finished for slot in store.slots(record.id))
        assert sum(1 for _ in store.trials(session=record.id)) == len(labels)


def test_trials_are_counted_before_they_are_measured(tmp_path: Path) -> None:
    session, reason = play(tmp_path / "s.db", Budget(trials=31), ManyCores(), **QUICK)
    assert reason == "all trials are used"
    assert session.tracks.trials == 31


def test_what_was_in_flight_goes_on(tmp_path: Path) -> None:
    play(tmp_path / "s.db", Budget(trials=20), ManyCores(), **QUICK)
    seen = {"trials": 0}

    def stop() -> bool:
        return seen["trials"] >= 12

    def count(event: Event, snapshot: Snapshot) -> None:
        seen["trials"] += event.kind == "trial"

    _, reason = play(tmp_path / "s.db", Budget(trials=60), ManyCores(), stop=stop, watcher=count)
    assert reason == "interrupted"
    measurer = ManyCores()
    session, reason = play(tmp_path / "s.db", Budget(trials=60), measurer)
    assert session.tracks.trials == 60
    assert reason == "all trials are used"


def test_what_a_relative_finds_while_a_slot_is_under_way_is_still_news(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        session = make_session(store, open_session(store, **QUICK), ManyCores(), Budget(trials=20))
        session.run()
        key, other = next((key, similar[0]) for key in session.rooms if (similar := session.kinship.similar(key)))
        slot, _ = session.ask(key)
        relative = session.tracks.by_key[other]
        relative.history.append(relative.history[-1] / 2)
        session.open(slot, key, [], 0.0)
        session.finish(slot, key, [])
        assert session.kinship.news(key, session.tracks) == 0.5
