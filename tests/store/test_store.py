"""What is put into a store comes out of it, from another process's view of the file too."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.store import ProgramRecord, SlotRecord, Store, StoreError, TrialRecord
from slipstream.store.trials import RANKED
from tests.store.samples import HARDWARE, OTHER_HARDWARE, filled, operator, program, trial


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_operators_sketches_and_hardware_come_back_as_they_went_in(path: Path) -> None:
    store, hardware = filled(path)
    store.add_operators([operator("bb11", name="another name"), operator("cc22")])
    store.add_sketch("5ce7c4", "another text")
    assert store.add_hardware(dict(reversed(HARDWARE.items()))) == hardware
    store.close()
    with Store.open(path, read_only=True) as again:
        assert list(again.operators()) == [operator("aa00"), operator("bb11"), operator("cc22")]
        assert again.operator("bb11") == operator("bb11")
        assert again.operator("dd33") is None
        assert again.sketch("5ce7c4") == "sketch text"
        assert again.sketch("none") is None
        assert again.hardware(hardware) == HARDWARE
        assert len(hardware) == 20
        with pytest.raises(StoreError, match="has no hardware feed"):
            again.hardware("feed")


def test_a_closed_store_is_one_file(path: Path) -> None:
    store, hardware = filled(path)
    store.append_trial(trial(hardware))
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


_seconds = st.floats(min_value=1e-9, max_value=1e9)
_trials = st.builds(
    TrialRecord,
    operator=st.sampled_from(["aa00", "bb11"]),
    hardware=st.just(""),
    program=st.builds(ProgramRecord, st.text(), st.text(), st.text()),
    samples=st.lists(_seconds, max_size=5).map(tuple),
    failure=st.none() | st.text(),
    message=st.text(),
    stopped_early=st.booleans(),
    noisy=st.booleans(),
    verified=st.booleans(),
    duplicate=st.booleans(),
    build_seconds=_seconds,
    run_seconds=_seconds,
    overhead_seconds=_seconds,
    measured_at=_seconds,
    slot=st.none() | st.integers(0, 9),
    position=st.none() | st.integers(0, 9),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(_trials, max_size=6))
def test_any_trial_survives_the_round_trip(records: list[TrialRecord]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store, hardware = filled(Path(directory) / "store.db")
        records = [dataclasses.replace(record, hardware=hardware) for record in records]
        with store:
            store.append_trials(records)
            back = list(store.trials())
    assert [dataclasses.replace(record, id=None) for record in back] == records
    assert [record.median for record in back] == [record.median for record in records]


def test_best_and_top(path: Path) -> None:
    store, hardware = filled(path)
    assert store.best("aa00", hardware) is None
    for seconds, number in ((3.0, 1), (None, 2), (1.0, 3), (2.0, 1), (1.5, 3)):
        store.append_trial(trial(hardware, seconds, number))
    best = store.best("aa00", hardware)
    assert best is not None
    assert (best.median, best.program, best.id) == (1.0, program(3), 3)
    assert [(t.median, t.program) for t in store.top("aa00", hardware, 9)] == [(1.0, program(3)), (2.0, program(1))]
    assert len(store.top("aa00", hardware, 1)) == 1
    assert store.top("aa00", hardware, 0) == []
    assert store.best("bb11", hardware) is None


def test_a_trial_without_samples_is_never_best(path: Path) -> None:
    store, hardware = filled(path)
    store.append_trial(trial(hardware, samples=()))
    assert store.best("aa00", hardware) is None
    assert store.counts(hardware) == {"aa00": (1, 1)}
    assert next(store.trials()).median == math.inf


def test_other_hardware_is_another_world(path: Path) -> None:
    store, hardware = filled(path)
    other = store.add_hardware(OTHER_HARDWARE)
    store.append_trial(trial(other, 0.1))
    assert store.best("aa00", hardware) is None
    assert list(store.trials(hardware=hardware)) == []
    assert store.counts(hardware) == {}
    assert store.counts(other) == {"aa00": (1, 0)}


def test_trials_by_what_they_belong_to(path: Path) -> None:
    store, hardware = filled(path)
    other = store.add_hardware(OTHER_HARDWARE)
    session = store.create_session("f00d", hardware, {}, {"aa00": 1})
    store.append_trial(trial(hardware, session=session, slot=0, position=1))
    store.append_trial(trial(hardware, None, operator="bb11"))
    store.append_trial(trial(other, operator="bb11"))
    assert [t.id for t in store.trials()] == [1, 2, 3]
    assert [t.id for t in store.trials(operator="bb11")] == [2, 3]
    assert [t.id for t in store.trials(operator="bb11", hardware=hardware)] == [2]
    assert [(t.session, t.slot, t.position) for t in store.trials(session=session)] == [(session, 0, 1)]
    assert store.counts(hardware) == {"aa00": (1, 0), "bb11": (1, 1)}


def test_trials_may_be_appended_while_they_are_read(path: Path) -> None:
    store, hardware = filled(path)
    store.append_trials(trial(hardware, number=n) for n in range(1200))
    seen = 0
    for record in store.trials():
        seen += 1
        if seen % 100 == 0:
            store.append_trial(record)
    assert seen == 1200
    assert sum(1 for _ in store.trials()) == 1212


def test_a_refused_trial_takes_its_whole_batch_with_it(path: Path) -> None:
    store, hardware = filled(path)
    with pytest.raises(StoreError, match="has no operator zz: add_operators comes first"):
        store.append_trials([trial(hardware), trial(hardware, operator="zz")])
    with pytest.raises(StoreError, match="has no hardware feed"):
        store.append_trial(trial("feed"))
    with pytest.raises(StoreError, match="has no session s1"):
        store.append_trial(trial(hardware, session="s1"))
    assert list(store.trials()) == []


def test_a_session_from_its_beginning_to_its_end(path: Path) -> None:
    store, hardware = filled(path)
    weights = {"bb11": 3, "aa00": 1}
    session = store.create_session("f00d", hardware, {"budget": "5m"}, weights)
    assert list(store.session_operators(session).items()) == list(weights.items())
    programs = (program(1), program(2, "diffusion"), program(1, "default"))
    store.begin_slot(session, 0, "aa00", programs, 1.5, {"gain": 0.25})
    store.begin_slot(session, 1, "bb11", (), 0.5, {})
    store.finish_slot(session, 0, {"best": math.inf})
    store.put_state(session, "cost", 0, b"old")
    store.put_state(session, "cost", 1, b"new")
    store.update_session(session, status="interrupted", elapsed=12.5)
    store.update_session(session, result={"latency": 1.0})
    store.close()
    with Store.open(path) as again:
        assert again.slots(session) == [
            SlotRecord(0, "aa00", programs, 1.5, {"gain": 0.25}, True, {"best": math.inf}),
            SlotRecord(1, "bb11", (), 0.5, {}, False, {}),
        ]
        (record,) = again.sessions()
        assert record == again.session(session)
        assert (record.model, record.model_name, record.hardware) == ("f00d", "tiny", hardware)
        assert (record.status, record.elapsed, record.result) == ("interrupted", 12.5, {"latency": 1.0})
        assert record.options == {"budget": "5m"}
        assert again.state(session, "cost") == (1, b"new")
        assert again.state(session, "belief") is None


def test_session_mistakes(path: Path) -> None:
    store, hardware = filled(path)
    session = store.create_session("f00d", hardware, {}, {})
    store.begin_slot(session, 0, "aa00", [program()], 0.0, {})
    mistakes = {
        "has no model 1234": lambda: store.create_session("1234", hardware, {}, {}),
        "has no operator zz": lambda: store.create_session("f00d", hardware, {}, {"zz": 1}),
        "has no session gone": lambda: store.session("gone"),
        "has begun before": lambda: store.begin_slot(session, 0, "aa00", [], 0.0, {}),
        "has not begun": lambda: store.finish_slot(session, 7, {}),
        "cannot be 'asleep'": lambda: store.update_session(session, status="asleep"),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(StoreError, match=message):
            mistake()
    assert len(store.sessions()) == len(store.slots(session)) == 1


def test_the_best_is_found_by_an_index_alone(path: Path) -> None:
    store, hardware = filled(path)
    store.append_trials(trial(hardware, 1.0 + n, n) for n in range(50))
    plan = json.dumps(store.database.rows(f"EXPLAIN QUERY PLAN {RANKED}", (hardware, "aa00")))
    assert "USING COVERING INDEX trial_best" in plan or "USING INDEX trial_best" in plan
    assert "TEMP B-TREE" not in plan


def test_no_trial_is_lost_over_a_message_that_is_not_text(path: Path) -> None:
    store, hardware = filled(path)
    store.append_trial(trial(hardware, None, message=b"died: \xff".decode(errors="surrogateescape")))
    assert next(store.trials()).message == "died: ?"
