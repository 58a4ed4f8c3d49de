"""`slipstream tune`, `resume` and `status` as a user types them, on the real machine with a few trials."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import slipstream
from slipstream.cli import main
from tests.cli.forked_commands import ForkedCommands
from tests.cli.test_bad_input import SLIPSTREAM
from tests.conftest import small_model

TRIALS = 6
pytestmark = pytest.mark.usefixtures("ordinary_signals")
QUICK = ("--effort", "quick")


@pytest.fixture(scope="module")
def tuned(
    tmp_path_factory: pytest.TempPathFactory, forked_command: ForkedCommands
) -> tuple[Path, list[dict[str, Any]]]:
    """A session on a small model, and what it said with --json."""
    folder = tmp_path_factory.mktemp("cli")
    _onnx(folder)
    done = forked_command(
        "tune", "m.onnx", "-o", "out", "--trials", str(TRIALS), *QUICK, "--seed", "1", "--json", cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "out", [json.loads(line) for line in done.stdout.splitlines()]


def test_json_lines(tuned: Any) -> None:
    directory, events = tuned
    assert [list(event)[:2] for event in events] == [["event", "elapsed"]] * len(events)
    assert (events[0]["event"], events[-1]["event"]) == ("started", "finished")
    assert events[0]["settings"]["seed"] == 1
    assert sum(event["event"] == "trial" for event in events) == TRIALS
    for event in events:
        if event["event"] in ("slot_done", "finished"):
            assert event["snapshot"]["model"] == "m"
            assert event["snapshot"]["operators"] == events[0]["operators"]
    last = events[-1]
    assert last["snapshot"]["trials"] == last["trials"] == TRIALS
    assert last["latency"] <= last["start_latency"]
    assert slipstream.load(directory).manifest.tuned["trials"] == TRIALS


def test_run_and_bench_take_the_sessions_directory(tuned: Any, forked_command: ForkedCommands) -> None:
    directory, _ = tuned
    done = forked_command("run", str(directory), "--random", cwd=directory.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "y: float32[1, 4, 8, 8]" in done.stdout
    done = forked_command("bench", str(directory), "--seconds", "0.1", "--json", cwd=directory.parent)
    assert (done.returncode, done.stderr) == (0, "")
    timed = json.loads(done.stdout)["parts"][0]["timings"]
    assert timed[0]["name"] == "slipstream"
    assert json.loads((directory / "bench.json").read_text())["timings"] == timed
    done = forked_command("bench", str(directory), "--seconds", "0.1", "--rate", "500", cwd=directory.parent)
    assert "500 requests a second" in done.stdout
    assert json.loads((directory / "bench.json").read_text())["timings"] == timed  # those back to back


def test_status(tuned: Any, forked_command: ForkedCommands) -> None:
    directory, _ = tuned
    done = forked_command("status", str(directory), "--json", cwd=directory.parent)
    said = json.loads(done.stdout)
    assert (said["status"], said["trials"], len(said["operators"])) == ("finished", TRIALS, tuned[1][0]["operators"])
    assert 0 < said["latency"] <= said["start_latency"]
    done = forked_command("status", str(directory), cwd=directory.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("m ")
    assert f"finished; the compiled model: {directory / 'model'}" in done.stdout


def _onnx(directory: Path) -> None:
    onnx.save(small_model(batch=1), directory / "m.onnx")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("tune zoo:tiny_cnn", "Missing option '-o'"),
        ("tune -o out", "Missing argument 'MODEL"),
        ("tune zoo:tiny_cnn -o out --json --quiet", "choose one"),
        ("resume out --plain --quiet", "choose one"),
        ("tune zoo:tiny_cnn -o out --trials 0", "0 is not in the range"),
        ("tune zoo:tiny_cnn -o out --budget soon", "a budget of 'soon' makes no sense: write 5m"),
        ("tune zoo:tiny_cnn -o out --until-latency -1ms", "a latency of '-1ms' makes no sense"),
        ("tune zoo:tiny_cnn -o out --scheduler fair", "there is no scheduler 'fair'; choose one of"),
        ("tune zoo:tiny_cnn -o out --search grid", "there is no search 'grid'; choose one of"),
        ("tune zoo:tiny_cnn -o out --cost guess", "there is no cost model 'guess'; choose one of"),
        ("tune zoo:tiny_cnn -o out --preset ansor", "there is no preset 'ansor'; choose one of"),
        ("tune zoo:tiny_cnn -o out --effort heroic", "there is no effort 'heroic'; choose one of"),
        ("tune zoo:tiny_cnn -o out --seed -1", "a seed is a whole number from 0"),
        ("tune zoo:tiny_cnn -o out --store no/where.db", "make its directory"),
        ("tune zoo:tiny -o out --trials 1", "unknown zoo model 'tiny'"),
        ("tune nowhere.onnx -o out --trials 1", "there is no file nowhere.onnx"),
        ("tune m.onnx -o full --trials 1", "full is not empty"),
        ("resume nowhere", "there is no directory"),
        ("resume full", "is no tuning session"),
        ("status nowhere", "there is no directory"),
        ("status full", "is no tuning session"),
    ],
)
def test_mistakes(command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _onnx(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not lose me")
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "m.onnx", "thesis.txt"]


def test_an_existing_session_is_pointed_to(tuned: Any) -> None:
    directory, _ = tuned
    done = CliRunner().invoke(main, ["tune", "zoo:tiny_cnn", "-o", str(directory)])
    assert done.exit_code == 2
    assert f"'slipstream resume {directory}' goes on with it" in done.stderr


# Ctrl-C


class Running:
    """`slipstream ... --json` in a process group of its own, as a shell starts it."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [*SLIPSTREAM, *arguments, "--json"],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.events: list[dict[str, Any]] = []

    def wait_for(self, kind: str, count: int) -> None:
        assert self.process.stdout is not None
        while count:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read() if self.process.stderr else ""
            self.events.append(json.loads(line))
            count -= self.events[-1]["event"] == kind

    def press(self, number: int = signal.SIGINT) -> None:
        """What a terminal does on Ctrl-C: every process of the group gets it."""
        os.killpg(self.process.pid, number)

    def end(self) -> tuple[int, str]:
        said, problems = self.process.communicate(timeout=120)
        self.events += [json.loads(line) for line in said.splitlines()]
        return self.process.returncode, problems


def status_of(directory: Path, command: ForkedCommands) -> dict[str, Any]:
    done = command("status", str(directory), "--json", cwd=directory.parent)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_ctrl_c_keeps_the_best_so_far_and_the_session_goes_on(tmp_path: Path, forked_command: ForkedCommands) -> None:
    _onnx(tmp_path)
    running = Running("tune", "m.onnx", "-o", "out", *QUICK, "--seed", "2", cwd=tmp_path)
    running.wait_for("trial", 4)
    running.press()
    assert running.end() == (0, "")
    last = running.events[-1]
    assert (last["event"], last["reason"]) == ("finished", "interrupted")
    said = status_of(tmp_path / "out", forked_command)
    assert (said["status"], said["trials"]) == ("interrupted", last["trials"])
    assert slipstream.load(tmp_path / "out").manifest.verification is not None

    done = forked_command("resume", "out", "--trials", "2", "--plain", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert "tuning m for" in first
    assert first.endswith(f"{running.events[0]['operators']} operators, 2 trials left")
    assert "finished: model" in done.stdout
    assert lines[-3].startswith("all trials are used; the compiled model is in")
    assert lines[-2:] == [
        "compare it: slipstream bench out --against onnxruntime",
        "see how it went: slipstream report out",
    ]
    assert slipstream.load(tmp_path / "out").manifest.tuned["trials"] == last["trials"] + 2
    said = status_of(tmp_path / "out", forked_command)
    assert (said["status"], said["trials"]) == ("finished", last["trials"] + 2)


def test_a_second_ctrl_c_ends_at_once_and_loses_nothing(tmp_path: Path, forked_command: ForkedCommands) -> None:
    _onnx(tmp_path)
    running = Running("tune", "m.onnx", "-o", "out", *QUICK, cwd=tmp_path)
    running.wait_for("trial", 5)
    running.press()
    running.wait_for("phase", 1)  # it has heard, and compiles the best so far
    running.press()
    began = time.monotonic()
    code, problems = running.end()
    assert time.monotonic() - began < 10
    heard = sum(event["event"] == "trial" for event in running.events)
    assert code == 130
    assert problems.startswith("error: interrupted; everything measured is kept: slipstream resume out goes on")
    assert status_of(tmp_path / "out", forked_command)["trials"] >= heard
    assert not (tmp_path / "out" / "model").exists()


def test_ctrl_c_before_anything_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slipstream.session.asked_models.load_model", pressed)
    done = CliRunner().invoke(main, ["tune", "zoo:tiny_cnn", "-o", str(tmp_path / "out")])
    assert done.exit_code == 130
    assert "interrupted; nothing was changed" in done.stderr
    assert not (tmp_path / "out").exists()
