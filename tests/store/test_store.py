"""What is put into a store comes out of it, from another process's view of the file too."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.store import ProgramRecord, Store, StoreError, StoreLocation, TrialRecord
from slipstream.store.trials import RANKED
from tests.store.samples import HARDWARE, filled, operator, trial


def test_operators_sketches_and_hardware_come_back_as_they_went_in(location: StoreLocation) -> None:
    store, hardware = filled(location)
    store.add_operators([operator("bb11", name="another name"), operator("cc22")])
    store.add_sketch("5ce7c4", "another text")
    assert store.add_hardware(dict(reversed(HARDWARE.items()))) == hardware
    store.close()
    with Store.open(location, read_only=True) as again:
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
_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
_trials = st.builds(
    TrialRecord,
    operator=st.sampled_from(["aa00", "bb11"]),
    hardware=st.just(""),
    program=st.builds(ProgramRecord, _text, _text, _text),
    samples=st.lists(_seconds, max_size=5).map(tuple),
    failure=st.none() | _text,
    message=_text,
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


def test_any_trial_survives_the_round_trip(location: StoreLocation) -> None:
    store, hardware = filled(location)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(_trials, max_size=6))
    def check(records: list[TrialRecord]) -> None:
        records = [dataclasses.replace(record, hardware=hardware) for record in records]
        before = sum(1 for _ in store.trials())
        store.append_trials(records)
        back = list(store.trials())[before:]
        assert [dataclasses.replace(record, id=None) for record in back] == records
        assert [record.median for record in back] == [record.median for record in records]
        assert all(store.is_known(record) for record in records)

    check()


def test_the_best_is_found_by_an_index_alone(path: Path) -> None:
    store, hardware = filled(path)
    store.append_trials(trial(hardware, 1.0 + n, n) for n in range(50))
    plan = json.dumps(store.database.rows(f"EXPLAIN QUERY PLAN {RANKED}", (hardware, "aa00")))
    assert "USING COVERING INDEX trial_best" in plan or "USING INDEX trial_best" in plan
    assert "TEMP B-TREE" not in plan


def test_no_trial_is_lost_over_a_message_that_is_not_text(location: StoreLocation) -> None:
    store, hardware = filled(location)
    store.append_trial(trial(hardware, None, message=b"died: \xff".decode(errors="surrogateescape")))
    store.append_trial(trial(hardware, None, message="died: \0"))
    first, second = store.trials()
    assert first.message == "died: ?"
    assert second.message in ("died: \0", "died: \ufffd")
