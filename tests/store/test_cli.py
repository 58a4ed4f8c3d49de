"""`slipstream store` as a user types it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slipstream.cli import main
from slipstream.store import Store
from tests.store.samples import OTHER_HARDWARE, filled, trial


def store_command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A session's directory with three operators, two of them with similar keys, on two machines."""
    store, hardware = filled(tmp_path / "store.db", "aa00", "aa11", "bb22")
    other = store.add_hardware(OTHER_HARDWARE)
    session = store.create_session("f00d", hardware, {}, {"aa00": 1})
    for number in range(5):
        store.append_trial(trial(hardware, (5 - number) * 1e-6, number, measured_at=float(number)))
    store.append_trial(trial(hardware, None, 9, operator="aa11", session=session))
    store.append_trial(trial(other, 7e-6, 1))
    store.update_session(session, status="finished", elapsed=60.0)
    store.close()
    return tmp_path


def test_stats(path: Path) -> None:
    done = store_command("stats", path)
    assert done.exit_code == 0
    for words in (
        "1 (tiny)",
        "operators  3",
        "trials     7, 1 of them failed (1 crash)",
        "finished, 60 s",
        "cpu skylake",
    ):
        assert words in done.output
    figures = json.loads(store_command("stats", path / "store.db", "--json").output)
    assert (figures["trials"], figures["failures"]) == (7, {"crash": 1})


def test_show(path: Path) -> None:
    operators = store_command("show", path).output
    assert [line.split()[1] for line in operators.splitlines()[1:]] == ["aa00", "aa11", "aa00"]
    assert "1.00" in operators
    assert "7.00" in operators
    programs = store_command("show", path, "aa00", "--count", 2, "--hardware", _digest(path, "neoverse")).output
    assert "matmul aa00" in programs
    assert [line.split()[1] for line in programs.splitlines()[2:]] == ["1.00", "2.00"]
    assert "[[4,4,1,2]]" in programs


def _digest(path: Path, cpu: str) -> str:
    rows = json.loads(store_command("stats", path, "--json").output)["hardware"]
    return str(next(row["digest"] for row in rows if row["descriptor"]["cpu"].startswith(cpu)))


def test_merge(path: Path, tmp_path: Path) -> None:
    new = tmp_path / "all.db"
    assert "7 trials and 1 sessions added, 0 trials known" in store_command("merge", new, path).output
    assert "0 trials and 0 sessions added, 7 trials known" in store_command("merge", new, path).output
    assert store_command("merge", tmp_path / "fresh.db", path, tmp_path / "none.db").exit_code == 2
    assert not (tmp_path / "fresh.db").exists()


def test_prune_asks_first(path: Path) -> None:
    assert "4 trials would go, 3 would stay; add --yes" in store_command("prune", path, "--keep", 1).output
    assert "4 trials removed, 3 kept" in store_command("prune", path, "--keep", 1, "--yes").output
    with Store.open(path / "store.db") as store:
        assert sum(1 for _ in store.trials()) == 3


def test_check_and_salvage(path: Path, tmp_path: Path) -> None:
    assert "is whole" in store_command("check", path).output
    file = path / "store.db"
    os.truncate(file, file.stat().st_size - 8192)
    done = store_command("check", path)
    assert done.exit_code == 2
    assert "malformed" in done.output
    assert "--salvage NEW" in done.output
    assert "4 program" not in done.output
    done = store_command("check", path, "--salvage", tmp_path / "new.db")
    assert done.exit_code == 0
    assert "trial" in done.output
    assert "is whole" in store_command("check", tmp_path / "new.db").output


MISTAKES = {
    ("show", "PATH", "aa"): "'aa' is ambiguous, give more of it: aa00 (matmul aa00), aa11 (matmul aa11)",
    ("show", "PATH", "zz"): "no operator begins with 'zz'",
    ("show", "PATH", "--hardware", "zz"): "no hardware begins with 'zz'",
    ("export", "PATH", "out"): "holds 2 pieces of hardware: choose with --hardware",
    ("stats", "none.db"): "there is no store at",
    ("stats", "damaged"): "session.json is damaged",
    ("stats", "x" * 300): "File name too long",
    ("check", "none.db"): "there is no store at",
    ("check", "none.db", "--salvage", "new.db"): "there is no store at",
    ("prune", "none.db", "--keep", "3"): "there is no store at",
    ("prune", "PATH", "--keep", "0"): "0 is not in the range",
    ("import", "PATH", "none"): "give the directory of a MetaSchedule database",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes(arguments: tuple[str, ...], path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "session.json").write_text("{")
    before = (path / "store.db").read_bytes()
    done = store_command(*(str(path) if word == "PATH" else word for word in arguments))
    assert done.exit_code == 2
    assert MISTAKES[arguments] in done.output
    assert (path / "store.db").read_bytes() == before
    assert not (tmp_path / "none.db").exists()
    assert not (tmp_path / "out").exists()
