"""Everything that can be wrong with the file or the disk is one line with a remedy, and loses nothing."""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.store import (
    Store,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreVersionError,
    sqlite,
)
from slipstream.store.check import find_problems
from slipstream.store.schema import VERSION
from tests.store.processes import as_nobody, python
from tests.store.samples import filled, trial


@pytest.fixture
def sound(path: Path) -> Path:
    """A store with 500 trials."""
    store, hardware = filled(path)
    store.append_trials(trial(hardware, 1.0 + n, n) for n in range(500))
    store.close()
    return path


def _random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(50_000))


def _text(path: Path) -> None:
    path.write_text("key,seconds\n" * 100)


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _half_a_header(path: Path) -> None:
    os.truncate(path, 50)


def _something_else(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE trial (id INTEGER)")
    other.close()


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version = {VERSION + 1}")
    newer.close()


def _a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _gone(path: Path) -> None:
    path.unlink()


SPOILED = [
    (_random_bytes, StoreDamagedError, "not a Slipstream store"),
    (_text, StoreDamagedError, "not a Slipstream store"),
    (_half_a_header, StoreDamagedError, "is damaged"),
    (_truncated, StoreDamagedError, "is damaged: 'slipstream store check .* --salvage"),
    (_something_else, StoreDamagedError, "SQLite file of something else"),
    (_newer, StoreVersionError, "version .*: upgrade Slipstream"),
    (_a_directory, StoreError, "is a directory: give the store's file"),
    (_gone, StoreError, "there is no store at"),
]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(("spoil", "error", "message"), SPOILED)
def test_a_file_that_cannot_be_used(
    spoil: object, error: type[StoreError], message: str, read_only: bool, sound: Path
) -> None:
    assert callable(spoil)
    spoil(sound)
    before = sound.read_bytes() if sound.is_file() else None
    with pytest.raises(error, match=message) as raised:
        Store.open(sound, create=False, read_only=read_only)
    assert "\n" not in str(raised.value)
    assert (sound.read_bytes() if sound.is_file() else None) == before


def test_damage_in_the_middle_is_met_when_it_is_read(sound: Path) -> None:
    size = sound.stat().st_size
    content = bytearray(sound.read_bytes())
    content[size // 2 :] = b"\xff" * (size - size // 2)
    sound.write_bytes(content)
    with Store.open(sound) as store, pytest.raises(StoreDamagedError, match="--salvage"):
        list(store.trials())


def test_no_directory_for_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="make its directory"):
        Store.open(tmp_path / "none" / "store.db")


def test_a_read_only_store_cannot_be_written(sound: Path) -> None:
    with Store.open(sound, read_only=True) as store, pytest.raises(StoreReadOnlyError, match="cannot be written"):
        store.add_model("1", "2", "3")


def test_a_full_database_keeps_what_it_has(sound: Path) -> None:
    with Store.open(sound) as store:
        (pages,) = store.database.rows("PRAGMA page_count")[0]
        store.database.execute(f"PRAGMA max_page_count = {pages + 2}")
        hardware = next(store.trials()).hardware
        with pytest.raises(StoreFullError, match="free some disk space"):
            store.append_trials(trial(hardware, 1.0, n) for n in range(1000, 2000))
        assert sum(1 for _ in store.trials()) == 500
    assert find_problems(sound) == []


def test_the_system_refuses_to_write_more(sound: Path) -> None:
    script = """
        import resource, sys
        from slipstream.store import Store, StoreFullError
        from tests.store.samples import trial
        store = Store.open(sys.argv[1])
        hardware = next(store.trials()).hardware
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
        added = 0
        try:
            while True:
                store.append_trials(trial(hardware, 1.0, 1000 + added + n) for n in range(100))
                added += 100
        except StoreFullError as error:
            print(added, error)
    """
    said, problems = python(script, sound).communicate(timeout=60)
    assert problems == ""
    added, _, message = said.partition(" ")
    assert "everything stored before is kept" in message
    assert message.count("\n") == 1
    with Store.open(sound) as store:
        assert sum(1 for _ in store.trials()) == 500 + int(added)
        store.add_model("1", "2", "3")
    assert int(added) > 0
    assert find_problems(sound) == []


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory that others can reach; pytest's are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory
        directory.chmod(0o755)


def test_somebody_elses_store_can_be_read_but_not_written(elsewhere: Path) -> None:
    path = elsewhere / "store.db"
    store, hardware = filled(path)
    store.append_trial(trial(hardware))
    store.close()
    path.chmod(0o444)
    elsewhere.chmod(0o555)

    def read() -> int:
        with Store.open(path, read_only=True) as store:
            return sum(1 for _ in store.trials())

    def write() -> None:
        with Store.open(path) as store:
            store.add_model("1", "2", "3")

    assert as_nobody(read) == "1"
    assert "StoreReadOnlyError" in (said := as_nobody(write))
    assert "cannot be written" in said
    assert "cannot open" in as_nobody(lambda: Store.open(elsewhere / "new.db"))
    path.chmod(0o000)
    assert "cannot open" in as_nobody(read)
    elsewhere.chmod(0o000)
    assert "you lack permission" in as_nobody(read)


def test_a_locked_store(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
        import sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        print("locked", flush=True)
        sys.stdin.read()
    """
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    with python(script, sound) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with Store.open(sound) as store:
            with pytest.raises(StoreLockedError, match="another process keeps"):
                store.add_model("1", "2", "3")
            assert sum(1 for _ in store.trials()) == 500
            holder.communicate("")
            store.add_model("1", "2", "3")


@pytest.mark.parametrize("read_only", [True, False])
def test_a_store_that_is_refused_is_not_left_open(path: Path, read_only: bool) -> None:
    filled(path)[0].close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StoreVersionError) as refused:
        Store.open(path, read_only=read_only)
    open_files = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert str(path.resolve()) not in open_files, refused
