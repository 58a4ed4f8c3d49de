"""Sessions whose store is in a PostgreSQL database: they resume, learn from each other and never show the password."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import slipstream
from slipstream.cli import main
from slipstream.cli.tune import _show
from slipstream.report.sessions import Sessions
from slipstream.session.directory import SessionDirectory, open_store
from slipstream.session.events import Event, Snapshot
from slipstream.store import PostgresUrl, StoreError, StoreUnreachableError
from slipstream.store import postgres as postgres_store
from tests.conftest import small_model
from tests.postgres import PASSWORD, Server, server_programs
from tests.session.test_tune import QUICK, synthetic

pytestmark = pytest.mark.xdist_group("postgres")


def command(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_sessions_on_a_server_that_asks_for_a_password_and_goes_away(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(small_model(batch=1), tmp_path / "small.onnx")
    first, second = tmp_path / "first", tmp_path / "second"
    database = postgres.new_database()
    options: dict[str, Any] = {"store": postgres.tcp_url(database), "measurer": synthetic, **QUICK}

    # The server goes away in the middle of a session: everything it confirmed is kept.
    def until_it_stops(watcher: Any) -> Any:
        def stop(event: Event, snapshot: Snapshot) -> None:
            if event.kind == "trial" and snapshot.trials == 4:
                postgres.stop()

        return slipstream.tune(tmp_path / "small.onnx", first, trials=6, callbacks=[stop], **options)

    monkeypatch.setattr(postgres_store, "RECONNECT_SECONDS", 0.2)
    try:
        with pytest.raises(
            StoreUnreachableError, match=f"is kept.*; then slipstream resume {re.escape(str(first))} goes on"
        ) as end:
            _show(until_it_stops, first, "quiet", False, None)
        assert "\n" not in str(end.value)
    finally:
        postgres.start()

    # The session's directory has no password.
    assert json.loads((first / "session.json").read_text())["store"] == postgres.tcp_url(database, None)
    with pytest.raises(StoreError, match="asks for a password: set PGPASSWORD"):
        slipstream.resume(first, measurer=synthetic)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert "killed" in command("status", first)
    resumed = slipstream.resume(first, measurer=synthetic)
    assert resumed.trials == 6
    assert sorted(path.name for path in first.iterdir()) == ["model", "session.json"]

    # The next session begins with what the first one found.
    assert slipstream.tune(tmp_path / "small.onnx", second, trials=8, **options).latency <= resumed.latency

    # Everything that shows a session shows these.
    live = Sessions(tmp_path)
    assert [row["trials"] for row in live.summaries()] == [8, 6]
    before = live.revisions()
    directory = SessionDirectory.read(first)
    assert isinstance(directory.store, PostgresUrl)
    with open_store(directory) as store:
        store.update_session(directory.session, elapsed=1e6)
    after = Sessions(tmp_path).revisions()
    assert [key for key in before if before[key] != after[key]] == [directory.session]
    shown = command("status", first, "--json") + command("report", first, "--json") + command("report", first)
    shown += command("store", "stats", first)

    # Neither the database nor a file nor the output has the password.
    programs = server_programs()
    assert programs is not None
    dump = [programs / "pg_dump", "-h", postgres.directory, "-p", str(postgres.port), "-U", "tuner", database]
    shown += subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    shown += "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert directory.session in shown
    for secret in (PASSWORD, "s3cret"):
        assert secret not in shown
