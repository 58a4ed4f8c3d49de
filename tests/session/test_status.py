"""What a session's state is called, also where its record cannot know."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.session.records import DEFAULTS
from slipstream.session.status import snapshot_of, state_of
from slipstream.store import OperatorRecord, ProgramRecord, Store, TrialRecord
from tests.store.samples import filled


@pytest.mark.parametrize(
    ("status", "owned", "unowned"),
    [("running", "running", "killed"), ("interrupted", "running", "interrupted"), ("finished", "finished", "finished")],
)
def test_the_state(status: str, owned: str, unowned: str, tmp_path: Path) -> None:
    """A session is marked as interrupted before its result is compiled, so that a crash leaves it right."""
    store, hardware = filled(tmp_path / "store.db")
    session = store.create_session("f00d", hardware, {}, {"aa00": 1})
    store.update_session(session, status=status)
    assert state_of(store, store.session(session)) == unowned
    with store.own(session):
        assert state_of(store, store.session(session)) == owned


@pytest.mark.parametrize(
    ("hardware", "dtype", "said"),
    [
        ({"kind": "cuda", "machine": "H200", "architecture": "sm_90", "threads": 1024}, "float32", "H200 (sm_90)"),
        ({"kind": "cuda", "machine": "H200", "architecture": "sm_90"}, "float16", "H200 (sm_90), float16"),
        ({"kind": "cpu", "architecture": "aarch64", "cpu": "neoverse-n1", "threads": 2}, "float32",
         "neoverse-n1 (aarch64), 2 threads"),
        ({"kind": "cpu", "architecture": "aarch64", "cpu": "neoverse-n1", "threads": 2}, "float16",
         "neoverse-n1 (aarch64), 2 threads, float16"),
    ],
)  # fmt: skip
def test_the_target_and_what_is_finished(hardware: dict[str, object], dtype: str, said: str, tmp_path: Path) -> None:
    """As the session itself says it; `most_trials` finishes an operator here as there."""
    with Store.open(tmp_path / "store.db") as store:
        digest = store.add_hardware(hardware)
        store.add_model("f00d", "m", "m.onnx")
        store.add_operators([OperatorRecord("aa", "matmul", ("matmul",), 1, 1, (), "")])
        store.add_sketch("00", "[]")
        options = {"settings": {"most_trials": 2}, "budget": {}, "dtype": dtype}
        session = store.create_session("f00d", digest, options, {"aa": 1})
        for slot, note, positions in ((0, DEFAULTS, 1), (1, {}, 2)):
            store.begin_slot(session, slot, "aa", [], 0.0, note)
            for position in range(positions):
                place = {"session": session, "slot": slot, "position": position}
                store.append_trial(TrialRecord("aa", digest, ProgramRecord("00", "[]"), (1e-3,), **place))
            assert [row.finished for row in snapshot_of(store, session).operators] == [slot == 1]
            store.finish_slot(session, slot, {"elapsed": 1.0})
        assert snapshot_of(store, session).target == said
