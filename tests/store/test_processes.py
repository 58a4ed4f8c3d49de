"""Several processes on one store, and processes that die."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.store import SessionBusyError, Store, StoreError, StoreLocation
from slipstream.store.check import find_problems
from tests.store.processes import python
from tests.store.samples import filled, operator, trial

WRITER = """
    import sys
    from slipstream.store import Store
    from tests.store.samples import HARDWARE, filled, trial
    store, hardware = filled(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[2])):
        store.append_trial(trial(hardware, 1.0 + number, number, message=sys.argv[3]))
    store.close()
"""


def test_two_processes_create_and_write_one_store(path: Path) -> None:
    writers = [python(WRITER, path, 100, name) for name in ("one", "two", "three")]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
    finally:
        problems = [writer.communicate(timeout=60)[1] for writer in writers]
    assert problems == ["", "", ""]
    with Store.open(path) as store:
        messages = [t.message for t in store.trials()]
        assert sorted(messages) == ["one"] * 100 + ["three"] * 100 + ["two"] * 100
        assert store.database.rows("SELECT count(*) FROM program") == [(100,)]
    assert find_problems(path) == []


def test_a_trial_survives_kill_9_of_its_process(location: StoreLocation) -> None:
    script = """
        import sys
        from tests.store.samples import filled, trial
        store, hardware = filled(sys.argv[1])
        number = 0
        while True:
            print(store.append_trial(trial(hardware, 1.0, number)), flush=True)
            number += 1
    """
    with python(script, location) as process:
        assert process.stdout is not None
        for _ in range(30):
            last = int(process.stdout.readline())
        process.kill()
        told = process.stdout.read().split("\n")
    last = max([last, *(int(line) for line in told[:-1] if line)])
    with Store.open(location) as store:
        assert {*range(1, last + 1)} <= {t.id for t in store.trials()}
    assert find_problems(location) == []


def test_asking_for_the_owner_takes_nothing_from_anybody(location: StoreLocation) -> None:
    store, hardware = filled(location)
    session = store.create_session("f00d", hardware, {}, {"aa00": 1})
    assert not store.is_owned(session)
    script = """
        import sys
        from slipstream.store import Store
        with Store.open(sys.argv[1]) as store, store.own(sys.argv[2]):
            print("mine", flush=True)
            sys.stdin.readline()
    """
    with python(script, location, session) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mine\n"
        assert store.is_owned(session)
        with pytest.raises(SessionBusyError):
            store.own(session).__enter__()
        process.kill()
    deadline = time.monotonic() + 10
    while store.is_owned(session) and time.monotonic() < deadline:
        time.sleep(0.01)  # a server has to notice
    assert not store.is_owned(session)
    with store.own(session):
        # Asking must not give up the lock of the process that asks.
        assert store.is_owned(session)
        again = python(script, location, session)
        assert "SessionBusyError" in again.communicate(timeout=60)[1]


def test_a_commit_is_synchronised_with_the_disk(path: Path) -> None:
    store, _ = filled(path)
    assert store.database.rows("PRAGMA journal_mode") == [("wal",)]
    assert store.database.rows("PRAGMA synchronous") == [(2,)]


def test_a_reader_does_not_block_a_writer(path: Path) -> None:
    store, hardware = filled(path)
    store.append_trial(trial(hardware))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM trial").fetchone() == (1,)
        store.append_trial(trial(hardware))
        assert reader.execute("SELECT count(*) FROM trial").fetchone() == (1,)
    assert sum(1 for _ in store.trials()) == 2


OWNER = """
    import os, sys, time
    from slipstream.store import Store
    with Store.open(sys.argv[1]) as store, store.own(sys.argv[2]):
        if sys.argv[3] == "fork" and os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
        if sys.argv[3] != "fork":
            print("owned", flush=True)
        sys.stdin.readline()
"""


def _session(location: StoreLocation) -> tuple[Store, str]:
    store, hardware = filled(location)
    return store, store.create_session("f00d", hardware, {}, {})


def test_two_processes_on_one_session(location: StoreLocation) -> None:
    store, session = _session(location)
    other = store.create_session("f00d", store.session(session).hardware, {}, {})
    with python(OWNER, location, session, "wait") as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        with pytest.raises(SessionBusyError) as busy, store.own(session):
            pass
        with store.own(other):
            pass
        owner.communicate("\n")
    assert f"process {owner.pid} on {os.uname().nodename} since 20" in str(busy.value)
    assert "\n" not in str(busy.value)
    with store.own(session):
        pass
    if isinstance(location, Path):
        assert f"{session} wait)" in str(busy.value)
        assert list(location.parent.glob("*.lock")) == []


def test_a_killed_owner_leaves_no_lock_even_if_its_worker_lives(location: StoreLocation) -> None:
    store, session = _session(location)
    with python(OWNER, location, session, "fork") as owner:
        assert owner.stdout is not None
        worker = int(owner.stdout.readline())
        try:
            with pytest.raises(SessionBusyError), store.own(session):
                pass
            owner.kill()
            owner.wait()
            os.kill(worker, 0)
            with store.own(session):
                pass
        finally:
            os.kill(worker, 9)


def test_owning_a_session_twice_in_one_process(location: StoreLocation) -> None:
    store, session = _session(location)
    with store.own(session):
        with pytest.raises(SessionBusyError, match="this process works on"), Store.open(location).own(session):
            pass
        with python(OWNER, location, session, "wait") as rival:
            assert "SessionBusyError" in rival.communicate("\n")[1]
    with pytest.raises(StoreError, match="has no session"):
        store.own("none")


def test_operators_can_be_added_by_two_at_once(location: StoreLocation) -> None:
    one, _ = filled(location)
    two, _ = filled(location)
    one.add_operators([operator("dd44")])
    two.add_operators([operator("dd44"), operator("ee55")])
    assert [record.key for record in one.operators()] == ["aa00", "bb11", "dd44", "ee55"]
