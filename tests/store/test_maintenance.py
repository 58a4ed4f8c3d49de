"""Merging, pruning, checking and salvaging stores."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.store import ProgramRecord, Store, StoreDamagedError, StoreError, StoreLocation, StoreVersionError
from slipstream.store.check import find_problems
from slipstream.store.merge import Merged, merge
from slipstream.store.prune import prune
from slipstream.store.salvage import salvage
from slipstream.store.schema import VERSION
from slipstream.store.summary import summarise
from tests.store.conftest import NewLocation
from tests.store.samples import HARDWARE, OTHER_HARDWARE, filled, operator, program, trial


@pytest.mark.parametrize(("version", "remedy"), [(VERSION - 1, "tune afresh"), (VERSION + 1, "upgrade Slipstream")])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_of_another_version_is_refused(path: Path, version: int, remedy: str, read_only: bool) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StoreVersionError, match=f"has the store version {version}, .*: {remedy}"):
        Store.open(path, read_only=read_only)


def _session(store: Store, hardware: str) -> str:
    session = store.create_session("f00d", hardware, {"budget": "5m"}, {"aa00": 2})
    store.begin_slot(session, 0, "aa00", [program(1), program(2, "diffusion")], 0.5, {"why": "first"})
    store.finish_slot(session, 0, {"best": 1.0})
    store.put_state(session, "cost", 0, b"trees")
    store.append_trial(trial(hardware, 1.0, 1, session=session, slot=0, position=0, measured_at=10.0))
    return session


_POSTGRES = pytest.mark.xdist_group("postgres")


@pytest.mark.parametrize(
    ("into", "out_of"),
    [
        ("sqlite", "sqlite"),
        *(pytest.param(*kinds, marks=_POSTGRES) for kinds in (("postgres", "sqlite"), ("sqlite", "postgres"))),
        pytest.param("postgres", "postgres", marks=_POSTGRES),
    ],
)
def test_merging_takes_everything_once(into: str, out_of: str, new_location: NewLocation) -> None:
    target, source = new_location(into), new_location(out_of)
    one, hardware = filled(target, "aa00")
    two, _ = filled(source, "bb11", "aa00")
    other = two.add_hardware(OTHER_HARDWARE)
    one.append_trial(trial(hardware, 3.0, 3, measured_at=1.0))
    two.append_trial(trial(hardware, 3.0, 3, measured_at=1.0))
    two.append_trial(trial(hardware, 3.0, 3, measured_at=2.0))
    two.append_trial(trial(other, 0.5, 3, measured_at=1.0))
    two.append_trial(trial(hardware, None, 4, operator="bb11", measured_at=1.0))
    two.add_sketch("5ce7c5", "only in two")
    session = _session(two, hardware)
    two.close()

    assert merge(one, source) == Merged(trials=4, known=1, sessions=1)
    assert merge(one, source) == Merged(trials=0, known=5, sessions=0)
    with Store.open(source) as two:
        assert one.session(session) == two.session(session)
        assert one.session_operators(session) == two.session_operators(session)
        assert one.slots(session) == two.slots(session)
        assert one.state(session, "cost") == (0, b"trees")
        placed = [(t.slot, t.position, t.program) for t in one.trials(session=session)]
        assert placed == [(0, 0, program(1))]
    assert one.hardware(other) == OTHER_HARDWARE
    assert one.counts(hardware) == {"aa00": (3, 0), "bb11": (1, 1)}
    assert one.counts(other) == {"aa00": (1, 0)}
    assert one.sketch("5ce7c5") == "only in two"
    assert [record.key for record in one.operators()] == ["aa00", "bb11"]
    one.close()
    assert find_problems(target) == []


def test_a_session_both_know_keeps_its_own_slots(tmp_path: Path) -> None:
    one, hardware = filled(tmp_path / "one.db")
    session = _session(one, hardware)
    one.close()
    shutil.copy(tmp_path / "one.db", tmp_path / "two.db")
    for name, number in (("one.db", 5), ("two.db", 6)):
        with Store.open(tmp_path / name) as store:
            store.begin_slot(session, 1, "aa00", [program(number)], 0.5, {})
            store.append_trial(trial(hardware, 1.0, number, session=session, slot=1, position=0))
    with Store.open(tmp_path / "one.db") as one:
        assert merge(one, tmp_path / "two.db") == Merged(trials=1, known=1, sessions=0)
        assert [t.program for t in one.trials(session=session)] == [program(1), program(5)]
        assert one.slots(session)[1].programs == (program(5),)
        assert len(one.top("aa00", hardware, 9)) == 3


def test_merging_mistakes(location: StoreLocation, tmp_path: Path) -> None:
    store, _ = filled(location)
    with pytest.raises(StoreError, match="into itself"):
        merge(store, location)
    with pytest.raises(StoreError, match="there is no store"):
        merge(store, tmp_path / "none.db")
    (tmp_path / "text").write_text("hello " * 500)
    with pytest.raises(StoreDamagedError, match="not a Slipstream store"):
        merge(store, tmp_path / "text")


def test_pruning_keeps_the_best_and_what_a_session_needs(location: StoreLocation) -> None:
    store, hardware = filled(location)
    other = store.add_hardware(OTHER_HARDWARE)
    big = "[" + "1," * 500 + "1]"
    store.append_trials(
        trial(hardware, 1.0 + number % 50, program=ProgramRecord("5ce7c4", f"[{number},{big}]"))
        for number in range(300)
    )
    store.append_trial(trial(hardware, None, 400))
    store.append_trial(trial(other, 9.0, 1))
    store.append_trial(trial(hardware, 9.0, 1, operator="bb11"))
    session = _session(store, hardware)
    before = [t.median for t in store.top("aa00", hardware, 3)]

    planned = prune(store, 3, dry_run=True)
    assert (planned.going, planned.staying) == (298, 6)
    assert sum(1 for _ in store.trials()) == 304

    done = prune(store, 3, dry_run=False)
    assert (done.going, done.staying) == (298, 6)
    if isinstance(location, Path):  # PostgreSQL keeps the room for what comes
        assert done.bytes_after < done.bytes_before / 2
    assert [t.median for t in store.top("aa00", hardware, 9)][:3] == before
    assert len(list(store.trials(session=session))) == 1
    assert store.slots(session)[0].programs == (program(1), program(2, "diffusion"))
    assert store.counts(other) == {"aa00": (1, 0)}
    assert prune(store, 3, dry_run=False).going == 0
    store.close()
    assert find_problems(location) == []


def test_summary(location: StoreLocation) -> None:
    store, hardware = filled(location)
    other = store.add_hardware(OTHER_HARDWARE)
    _session(store, hardware)
    for number in range(3):
        store.append_trial(trial(other, None, number))
    summary = summarise(store)
    assert summary["models"] == ["tiny"]
    assert summary["sessions"] == {"running": 1}
    assert (summary["operators"], summary["programs"], summary["trials"]) == (2, 3, 4)
    assert summary["failures"] == {"crash": 3}
    found = [tuple(row.values()) for row in summary["hardware"]]
    assert found == [(hardware, HARDWARE, 1, 1), (other, OTHER_HARDWARE, 1, 3)]
    assert summary["bytes"] > 10_000


@pytest.fixture(scope="module")
def many_trials(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with 3,000 trials and a session."""
    path = tmp_path_factory.mktemp("large") / "store.db"
    store, hardware = filled(path)
    store.append_trials(trial(hardware, 1.0 + n, n) for n in range(3000))
    _session(store, hardware)
    store.close()
    return path.read_bytes()


@pytest.fixture
def large(path: Path, many_trials: bytes) -> Path:
    """Its copy, to be damaged."""
    path.write_bytes(many_trials)
    return path


def test_checking_a_sound_store(large: Path) -> None:
    assert find_problems(large) == []


VALUES = {
    "UPDATE operator SET module = x'00' WHERE id = 2": "row 2 of operator: module cannot be read",
    "UPDATE trial SET samples = x'000000' WHERE id = 7": "row 7 of trial: samples cannot be read",
    "DELETE FROM sketch": "refers to a row of sketch that is missing",
}


@pytest.mark.parametrize("change", VALUES)
def test_what_a_check_finds(change: str, large: Path) -> None:
    with closing(sqlite3.connect(large)) as connection, connection:
        connection.execute(change)
    problems = find_problems(large)
    assert VALUES[change] in problems[0]
    assert len(problems) <= 20


def test_salvaging_around_lost_pages(large: Path, tmp_path: Path) -> None:
    size = large.stat().st_size
    rng = random.Random(1)
    content = bytearray(large.read_bytes())
    for page in range(60, size // 4096, 10):
        content[page * 4096 : (page + 1) * 4096] = rng.randbytes(4096)
    large.write_bytes(content)
    assert find_problems(large)
    result = salvage(large, tmp_path / "new.db")
    assert large.read_bytes() == content
    assert find_problems(tmp_path / "new.db") == []
    with Store.open(tmp_path / "new.db") as store:
        records = list(store.trials())
        assert len(records) == result.rows["trial"] - result.dropped
        assert 2000 < len(records) < 3001
        assert all(t.program.decisions.startswith(f"[[{t.median - 1:.0f},") for t in records if t.session is None)
        store.add_operators([operator("cc22")])


def test_salvaging_a_truncated_file(large: Path, tmp_path: Path) -> None:
    size = large.stat().st_size
    with large.open("r+b") as file:
        file.truncate(size // 2)
    assert find_problems(large) == ["database disk image is malformed"]
    salvage(large, tmp_path / "new.db")
    assert find_problems(tmp_path / "new.db") == []
    with Store.open(tmp_path / "new.db") as store:
        assert sum(1 for _ in store.trials()) > 1000


def test_salvaging_what_is_not_damaged_loses_nothing(large: Path, tmp_path: Path) -> None:
    salvage(large, tmp_path / "new.db")
    with Store.open(large) as old, Store.open(tmp_path / "new.db") as new:
        assert list(new.trials()) == list(old.trials())
        assert new.sessions() == old.sessions()
        assert [new.slots(s.id) for s in new.sessions()] == [old.slots(s.id) for s in old.sessions()]
    with pytest.raises(StoreError, match="choose a new file"):
        salvage(large, tmp_path / "new.db")
    (tmp_path / "text").write_text("hello " * 500)
    with pytest.raises(StoreDamagedError, match="not a Slipstream store"):
        salvage(tmp_path / "text", tmp_path / "newer.db")
    assert not (tmp_path / "newer.db").exists()
