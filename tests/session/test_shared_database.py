"""Sessions whose store is in a PostgreSQL database: they resume, learn from each other and never show the password."""

from __future__ import annotations

import json
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
from slipstream.store import PostgresUrl, Store, StoreUnreachableError
from slipstream.store import postgres as postgres_store
from tests.conftest import small_model
from tests.postgres import PASSWORD, Server, server_programs
from tests.session.test_tune import QUICK, synthetic

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(small_model(batch=1), path)
    return path


def command(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_session_with_a_password(
    small: Path, postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres.new_database()
    first = slipstream.tune(
        small, tmp_path / "a", trials=6, store=postgres.tcp_url(database), measurer=synthetic, **QUICK
    )
    assert sorted(path.name for path in first.directory.iterdir()) == ["model", "session.json"]
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    more = slipstream.resume(first.directory, trials=3, measurer=synthetic)
    assert more.trials == 9
    second = slipstream.tune(
        small, tmp_path / "b", trials=9, store=postgres.tcp_url(database), measurer=synthetic, **QUICK
    )
    assert second.latency <= more.latency  # it began with the first one's programs
    shown = command("status", first.directory) + command("status", first.directory, "--json")
    shown += command("report", first.directory, "--json") + command("store", "stats", first.directory)
    assert command("report", first.directory).strip() == str(first.directory / "report.html")
    live = Sessions(tmp_path)
    assert [row["trials"] for row in live.summaries()] == [9, 9]
    before = live.revisions()
    with open_store(directory := SessionDirectory.read(first.directory)) as store:
        store.update_session(directory.session, elapsed=1e6)
    changed = Sessions(tmp_path).revisions()
    assert [changed[key] != before[key] for key in before] == [key == directory.session for key in before]
    programs = server_programs()
    assert programs is not None
    dump = [programs / "pg_dump", "-h", postgres.directory, "-p", str(postgres.port), "-U", "tuner", database]
    shown += subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    for path in tmp_path.rglob("*"):
        shown += path.read_text(errors="replace") if path.is_file() else ""
    for secret in (PASSWORD, "s3cret", "s3cret%40"):
        assert secret not in shown
    assert json.loads((first.directory / "session.json").read_text())["store"] == postgres.tcp_url(database, None)
    assert isinstance(directory.store, PostgresUrl)


def test_a_server_that_goes_away_ends_the_session_which_then_resumes(
    small: Path, restarted_postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "RECONNECT_SECONDS", 0.2)
    postgres = restarted_postgres
    url, directory = postgres.url(postgres.new_database()), tmp_path / "out"

    def work(watcher: Any) -> Any:
        def stop(event: Event, snapshot: Snapshot) -> None:
            if event.kind == "trial" and snapshot.trials == 4:
                postgres.stop()

        return slipstream.tune(small, directory, trials=9, store=url, measurer=synthetic, callbacks=[stop], **QUICK)

    try:
        with pytest.raises(StoreUnreachableError, match=f"everything .* is kept.*slipstream resume {directory}") as end:
            _show(work, directory, "quiet", False, None)
        assert "\n" not in str(end.value)
    finally:
        postgres.start()
    with Store.open(url) as store:
        assert sum(1 for _ in store.trials()) == 4
    assert "killed" in command("status", directory)
    assert slipstream.resume(directory, measurer=synthetic).trials == 9
