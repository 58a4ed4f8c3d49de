"""What a session's state is called, also where its record cannot know."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.session.status import state_of
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
