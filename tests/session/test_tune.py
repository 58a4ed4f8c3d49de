"""`slipstream.tune` and `slipstream.resume` from a model to the compiled one, and everything that can be wrong."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import slipstream
from slipstream.errors import SlipstreamError
from slipstream.frontends.inputs import random_inputs
from slipstream.measure.types import FailureKind
from slipstream.plugins import Context, PluginError
from slipstream.session.budget import BudgetError
from slipstream.session.directory import SessionDirectory, SessionDirectoryError
from slipstream.session.events import Event, Snapshot
from slipstream.session.settings import SettingsError
from slipstream.store import (
    SessionBusyError,
    Store,
    StoreDamagedError,
    StoreError,
    StoreVersionError,
)
from tests.conftest import small_model
from tests.session.synthetic import SyntheticMeasurer, model
from tests.session.test_documentation import documented_events
from tests.store.processes import as_nobody, python

QUICK: dict[str, Any] = {"effort": "quick", "search": "random"}
OPERATORS = 6
TRIALS = 10


def synthetic(context: Context) -> SyntheticMeasurer:
    """Nothing is measured: these tests are about what is around it."""
    return SyntheticMeasurer()


def session_of(directory: Path) -> tuple[Any, int]:
    """The session's record and its number of trials."""
    folder = SessionDirectory.read(directory)
    with Store.open(folder.store, read_only=True) as store:
        return store.session(folder.session), sum(1 for _ in store.trials(session=folder.session))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A model of one operator, as a file."""
    path = tmp_path / "small.onnx"
    onnx.save(small_model(batch=1), path)
    return path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[slipstream.TuningResult, list[Event], list[str]]:
    """zoo:tiny_cnn tuned for real with a few trials, watched by two callbacks of which one breaks."""
    directory = tmp_path_factory.mktemp("tuned") / "session"
    events: list[Event] = []
    phases: list[str] = []
    calls: list[Event] = []

    def watch(event: Event, snapshot: Snapshot) -> None:
        events.append(event)
        phases.append(snapshot.phase)

    def breaks(event: Event, snapshot: Snapshot) -> None:
        calls.append(event)
        raise RuntimeError("this callback is broken")

    logging.disable(logging.CRITICAL)
    try:
        result = slipstream.tune(
            "zoo:tiny_cnn", directory, trials=TRIALS, effort="quick", callbacks=[breaks, watch], seed=3
        )
    finally:
        logging.disable(logging.NOTSET)
    assert len(calls) == 1
    return result, events, phases


def test_the_result_is_a_verified_model_that_computes_what_the_reference_does(tuned: Any) -> None:
    result, _, _ = tuned
    compiled = slipstream.load(result.directory)
    feed = random_inputs(compiled.inputs, np.random.default_rng(7))
    (expected,) = model().reference.outputs([feed])
    for name, want in zip((spec.name for spec in compiled.outputs), expected, strict=True):
        np.testing.assert_allclose(compiled(feed)[name], want, rtol=1e-3, atol=1e-4)
    assert compiled.manifest.verification is not None
    assert compiled.manifest.tuned["trials"] == TRIALS
    assert result.trials == TRIALS
    assert result.reason == "all trials are used"
    assert len(result.operators) == OPERATORS
    assert result.latency <= result.start_latency
    assert all(operator.best <= operator.start for operator in result.operators)
    assert 0 < result.end_to_end < 1


def test_callbacks_hear_everything_and_a_broken_one_is_dropped(tuned: Any) -> None:
    _, events, phases = tuned
    assert (events[0].kind, events[-1].kind) == ("started", "finished")
    assert sum(event.kind == "trial" for event in events) == TRIALS
    order = [phase for i, phase in enumerate(phases) if i == 0 or phase != phases[i - 1]]
    assert order == ["prepare", "defaults", "tune", "settle", "compile", "verify", "done"]
    json.dumps([event.data for event in events])
    documented = documented_events()
    data: dict[str, set[str]] = {}
    for event in events:
        data.setdefault(event.kind, set()).update(event.data)
    data["finished"].discard("elapsed")  # every event has it
    assert all(documented[kind] == names for kind, names in data.items())


def test_a_result_can_be_looked_at(tuned: Any) -> None:
    result, _, _ = tuned
    assert str(result).startswith("tiny_cnn: ")
    assert f"after {TRIALS} trials" in str(result)
    page = result._repr_html_()
    assert page.count("<tr>") == 1 + OPERATORS
    assert "<table>" in page
    assert json.loads(json.dumps(result.to_json()))["trials"] == TRIALS


def test_a_finished_session_goes_on_with_more_budget_and_keeps_the_new_one(tuned: Any, tmp_path: Path) -> None:
    result, _, _ = tuned
    directory = tmp_path / "copy"
    shutil.copytree(result.directory, directory)
    assert session_of(directory)[0].status == "finished"
    more = slipstream.resume(directory, trials=3, measurer=synthetic)
    assert (more.trials, session_of(directory)[1]) == (TRIALS + 3, TRIALS + 3)
    assert more.elapsed > result.elapsed
    again = slipstream.resume(directory, measurer=synthetic)
    assert again.trials == TRIALS + 3
    assert slipstream.load(directory).manifest.tuned["trials"] == TRIALS + 3


class Racing(SyntheticMeasurer):
    """All programs are equally fast; a race of near-ties takes seconds, or is when somebody presses Ctrl-C."""

    def __init__(self, seconds: float = 0.0, number: int | None = None) -> None:
        super().__init__(lambda candidate: 1e-3)
        self.seconds, self.number, self.races = seconds, number, 0

    def settle(self, measurements: list[Any], rng: np.random.Generator, enough: Callable[[], bool]) -> None:
        self.races += 1
        time.sleep(self.seconds)
        if self.number is not None and self.races == 1:
            signal.raise_signal(self.number)


def test_a_long_session_that_goes_on_for_seconds_tunes_and_settles_in_them(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    slipstream.tune("zoo:tiny_cnn", directory, trials=30, measurer=lambda *_: Racing(), **QUICK)
    folder = SessionDirectory.read(directory)
    with Store.open(folder.store) as store:
        store.update_session(folder.session, elapsed=3600.0)
    measurer = Racing(seconds=2.0)
    more = slipstream.resume(directory, budget="30s", trials=20, measurer=lambda *_: measurer)
    assert more.trials == 30 + 20
    assert 1 <= measurer.races < OPERATORS


@pytest.mark.usefixtures("ordinary_signals")
def test_ctrl_c_ends_the_comparison_of_near_ties(tmp_path: Path) -> None:
    measurer = Racing(number=signal.SIGINT)
    result = slipstream.tune("zoo:tiny_cnn", tmp_path / "s", trials=30, measurer=lambda *_: measurer, **QUICK)
    assert measurer.races == 1
    assert slipstream.load(result.directory).manifest.tuned["trials"] == 30


def test_a_session_is_all_in_its_directory(tuned: Any, tmp_path: Path) -> None:
    result, _, _ = tuned
    assert sorted(path.name for path in result.directory.iterdir()) == ["model", "session.json", "store.db"]
    moved = tmp_path / "elsewhere"
    shutil.copytree(result.directory, moved)
    assert SessionDirectory.read(moved).store == moved / "store.db"


def test_a_shared_store_serves_the_next_session(small: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared.db"
    first = slipstream.tune(small, tmp_path / "a", trials=6, store=shared, measurer=synthetic, **QUICK)
    second = slipstream.tune(small, tmp_path / "b", trials=12, store=shared, measurer=synthetic, **QUICK)
    assert second.latency <= first.latency
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["model", "session.json"]
    with Store.open(shared) as store:
        assert len(store.sessions()) == 2


def test_a_torch_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU())
    example = (torch.randn(4, 16),)
    result = slipstream.tune(module, tmp_path / "t", example_inputs=example, trials=4, measurer=synthetic, **QUICK)
    (output,) = slipstream.load(result.directory)(example[0].numpy())
    np.testing.assert_allclose(output, module(*example).detach().numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(SlipstreamError, match=r"pass it to slipstream\.resume"):
        slipstream.resume(tmp_path / "t", measurer=synthetic)
    more = slipstream.resume(tmp_path / "t", model=module, example_inputs=example, trials=2, measurer=synthetic)
    assert more.trials == 6


# What a person can get wrong


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"budget": "soon"}, BudgetError, "write 5m"),
        ({"budget": 0}, BudgetError, "allows nothing"),
        ({"trials": 0}, BudgetError, "a whole number from 1"),
        ({"until_latency": "fast"}, BudgetError, "a latency of 'fast'"),
        ({"effort": "heroic"}, SettingsError, "choose one of quick, normal, max"),
        ({"evaluation": "none"}, SettingsError, "choose one of racing, adatune, fixed"),
        ({"preset": "ansor"}, SettingsError, "choose one of metaschedule"),
        ({"scheduler": "fair"}, PluginError, "there is no scheduler 'fair'; choose one of dynatune"),
        ({"search": "grid"}, PluginError, "there is no search 'grid'"),
        ({"cost": "oracle"}, PluginError, "there is no cost model 'oracle'"),
        ({"seed": -1}, SettingsError, "a seed is a whole number from 0"),
        ({"target": "gpu7"}, SlipstreamError, "unknown target"),
        ({"store": "nowhere/store.db"}, StoreError, "make its directory"),
        ({"store": "."}, StoreError, "is a directory: give the store's file"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    options: Any, error: type[SlipstreamError], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says) as refused:
        slipstream.tune("zoo:tiny_cnn", "out", measurer=synthetic, **options)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def _session(path: Path) -> None:
    path.mkdir()
    (path / "session.json").write_text("{}")


def _full(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("do not lose me")


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (_session, "already holds a session: 'slipstream resume"),
        (_full, "is not empty"),
        (lambda path: path.write_text("x"), "is a file"),
        (lambda path: path.symlink_to("nowhere"), "is a link that leads nowhere"),
    ],
)
def test_a_directory_that_a_new_session_cannot_have(
    prepare: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    prepare(tmp_path / "out")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(SessionDirectoryError, match=says):
        slipstream.tune("zoo:tiny_cnn", tmp_path / "out")
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda path: None, "there is no directory"),
        (lambda path: path.mkdir(), "is no tuning session"),
        (lambda path: _write_session(path, "{"), "is damaged"),
        (lambda path: _write_session(path, "[]"), "is damaged"),
        (lambda path: _write_session(path, '{"store": 5, "session": "x"}'), "is damaged"),
        (lambda path: _write_session(path, '{"store": "gone.db", "session": "x"}'), "is gone"),
    ],
)
def test_a_directory_that_cannot_be_resumed(prepare: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    prepare(tmp_path / "out")
    with pytest.raises(SessionDirectoryError, match=says) as refused:
        slipstream.resume(tmp_path / "out")
    assert "\n" not in str(refused.value)


def _write_session(path: Path, text: str) -> None:
    path.mkdir()
    (path / "session.json").write_text(text)


# A session that exists, and the store under it


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished session on a small model file; tests copy the whole folder."""
    folder = tmp_path_factory.mktemp("begun")
    onnx.save(small_model(batch=1), folder / "small.onnx")
    slipstream.tune(folder / "small.onnx", folder / "session", trials=4, measurer=synthetic, **QUICK)
    return folder / "session"


def test_a_session_whose_operators_another_version_no_longer_makes(begun: Path, tmp_path: Path) -> None:
    session = shutil.copytree(begun, tmp_path / "s")
    with sqlite3.connect(session / "store.db") as connection:
        connection.execute("UPDATE operator SET key = 'of before' WHERE id = (SELECT min(id) FROM operator)")
    with pytest.raises(SlipstreamError, match=r"other operators: 1 of \d+ are new.*--store .*store\.db") as refused:
        slipstream.resume(session, trials=2, measurer=synthetic)
    assert "\n" not in str(refused.value)
    shutil.copy(begun.parent / "small.onnx", tmp_path)
    more = slipstream.tune(
        tmp_path / "small.onnx", tmp_path / "new", store=session / "store.db", trials=2, measurer=synthetic, **QUICK
    )
    assert more.trials == 2
    assert (tmp_path / "new" / "model" / "manifest.json").exists()


@pytest.fixture
def session(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "session"))


def test_a_changed_model_is_refused(small: Path, tmp_path: Path) -> None:
    slipstream.tune(small, tmp_path / "s", trials=2, measurer=synthetic, **QUICK)
    changed = small_model(batch=1)
    changed.graph.initializer[0].raw_data = bytes(len(changed.graph.initializer[0].raw_data))
    onnx.save(changed, small)
    with pytest.raises(SlipstreamError, match=r"its content has changed.*start a new session"):
        slipstream.resume(tmp_path / "s", trials=2, measurer=synthetic)
    small.unlink()
    with pytest.raises(SlipstreamError, match="is not there any more"):
        slipstream.resume(tmp_path / "s", trials=2, measurer=synthetic)
    assert session_of(tmp_path / "s")[1] == 2


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda path: path.write_bytes(b"key,seconds\n" * 100), StoreDamagedError),
        (lambda path: os.truncate(path, path.stat().st_size // 2), StoreDamagedError),
        (_newer, StoreVersionError),
    ],
)
def test_a_store_that_cannot_be_used(spoil: Callable[[Path], object], error: Any, session: Path, small: Path) -> None:
    spoil(session / "store.db")
    before = (session / "store.db").read_bytes()
    artifact = sorted((session / "model").iterdir())
    for action in (
        lambda: slipstream.resume(session, trials=2, measurer=synthetic),
        lambda: slipstream.tune(small, session.parent / "new", trials=2, store=session / "store.db", **QUICK),
    ):
        with pytest.raises(error) as refused:
            action()
        assert "\n" not in str(refused.value)
    assert (session / "store.db").read_bytes() == before
    assert sorted((session / "model").iterdir()) == artifact


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that others can reach; pytest's are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_session_of_somebody_else(begun: Path, open_to_all: Path) -> None:
    directory = Path(shutil.copytree(begun, open_to_all / "session"))
    for path in (directory, directory / "model"):
        path.chmod(0o555)
    (directory / "store.db").chmod(0o444)
    said = as_nobody(lambda: slipstream.resume(directory, trials=2))
    assert "StoreReadOnlyError" in said
    assert as_nobody(lambda: session_of(directory)[1]) == "4"
    assert "not a writable directory" in as_nobody(lambda: slipstream.tune("zoo:tiny_cnn", directory / "new"))


def test_two_processes_on_one_session(session: Path) -> None:
    script = """
        import sys
        from slipstream.session.directory import SessionDirectory, open_store
        folder = SessionDirectory.read(sys.argv[1])
        with open_store(folder) as store, store.own(folder.session):
            print("mine", flush=True)
            sys.stdin.read()
    """
    with python(script, session) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "mine\n"
        with pytest.raises(SessionBusyError, match=f"process {owner.pid} on .*: wait for it, or stop it"):
            slipstream.resume(session, trials=2, measurer=synthetic)
        owner.communicate("")
    assert slipstream.resume(session, trials=2, measurer=synthetic).trials == 6


def test_two_processes_that_begin_a_session_in_one_folder(small: Path, tmp_path: Path) -> None:
    """The one that comes first goes on until the other has ended."""
    script = """
        import sys, time
        from pathlib import Path
        import slipstream
        from slipstream.tvm_bridge.imports import import_tvm_without_torch
        import_tvm_without_torch()
        from slipstream.errors import SlipstreamError
        from tests.session.synthetic import SyntheticMeasurer, hashed

        def seconds(candidate):
            while not Path(sys.argv[3]).exists():
                time.sleep(0.01)
            return hashed(candidate)

        print("ready", flush=True)
        sys.stdin.readline()
        options = {"trials": 4, "effort": "quick", "search": "random"}
        try:
            slipstream.tune(*sys.argv[1:3], measurer=lambda *_: SyntheticMeasurer(seconds), **options)
            print("tuned")
        except SlipstreamError as error:
            print(error)
    """
    go_on = tmp_path / "go on"
    both = [python(script, small, tmp_path / "s", go_on) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    deadline = time.monotonic() + 60
    while all(process.poll() is None for process in both) and time.monotonic() < deadline:
        time.sleep(0.05)
    first = next(process for process in both if process.poll() is None)
    go_on.touch()
    said = sorted((process is not first, *process.communicate(timeout=60)) for process in both)
    assert said[0][1] == "tuned\n", said
    assert f"{tmp_path / 's'} is being worked on by process {first.pid} on " in said[1][1], said
    assert said[1][1].count("\n") == 1
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["model", "session.json", "store.db"]
    with Store.open(tmp_path / "s" / "store.db", read_only=True) as store:
        assert len(store.sessions()) == 1


def test_what_a_kill_left_of_a_beginning_is_no_obstacle(small: Path, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "session.lock").write_text("")
    assert slipstream.tune(small, tmp_path / "s", trials=2, measurer=synthetic, **QUICK).trials == 2


def test_a_full_disk_ends_the_session_and_loses_nothing(session: Path) -> None:
    """The process may not write files beyond some size from the second trial on."""
    script = """
        import resource, sys
        import slipstream
        from slipstream.tvm_bridge.imports import import_tvm_without_torch
        import_tvm_without_torch()
        from slipstream.store import StoreFullError
        from tests.session.synthetic import SyntheticMeasurer, hashed

        def seconds(candidate):
            if candidate.label.endswith(":1"):
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            return hashed(candidate)

        try:
            slipstream.resume(sys.argv[1], trials=20, measurer=lambda *_: SyntheticMeasurer(seconds))
        except StoreFullError as error:
            print(error)
    """
    said, _ = python(script, session).communicate(timeout=120)
    assert "everything stored before is kept" in said
    assert said.count("\n") == 1
    kept = session_of(session)[1]
    assert 4 < kept < 24
    assert slipstream.resume(session, trials=3, measurer=synthetic).trials == kept + 3


def test_what_is_left_when_all_operators_fail(small: Path, tmp_path: Path) -> None:
    broken = SyntheticMeasurer(lambda candidate: FailureKind.OUT_OF_MEMORY)
    result = slipstream.tune(small, tmp_path / "s", budget="1h", measurer=lambda *_: broken, **QUICK)
    assert result.reason == "nothing improves any more"
    assert result.failures == {"out of memory": result.trials}
    assert (result.operators, result.latency) == ((), math.inf)
    assert slipstream.load(tmp_path / "s").manifest.verification is not None
    assert "no operator could be timed" in str(result)
    assert "out of memory" in json.dumps(result.to_json())


def test_importing_the_session_costs_no_tvm() -> None:
    """`slipstream status` and `--help` should not wait for it."""
    script = "import sys; import slipstream.session.status, slipstream.session.directory; print('tvm' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )
