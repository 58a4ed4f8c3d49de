"""The lock file: what is rebuilt from it is the same, and what does not fit it is said in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import slipstream
from slipstream.artifact import side_by_side
from slipstream.artifact.check import _Check
from slipstream.artifact.lock import Lock, LockedLatency, LockError, lock_file
from slipstream.artifact.manifest import Manifest, checksum
from slipstream.frontends import zoo
from slipstream.machine.target import resolve_target
from tests.conftest import small_model
from tests.session.synthetic import MODEL, SyntheticMeasurer, model, operators, space

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A session whose measurer only pretends, so that its programs are not the default ones, and its lock file."""
    folder = tmp_path_factory.mktemp("locked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "SECONDS", 0.2)
        slipstream.tune(
            model(),
            folder / "session",
            trials=len(operators()) + 42,
            settings={"slot_trials": 6},
            search="random",
            measurer=lambda context: SyntheticMeasurer(),
            lock=folder / "slipstream.lock",
        )
    return folder / "session", folder / "slipstream.lock"


@pytest.fixture
def edited(tuned: tuple[Path, Path], tmp_path: Path) -> Callable[[Edit], Path]:
    """The lock file with something changed."""

    def edit(change: Edit) -> Path:
        content = json.loads(tuned[1].read_text())
        change(content)
        path = tmp_path / "edited.lock"
        path.write_text(json.dumps(content))
        return path

    return edit


@pytest.fixture(scope="module")
def rebuilt(tuned: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> slipstream.CompileResult:
    return slipstream.compile(MODEL, tmp_path_factory.mktemp("rebuilt") / "model", lock=tuned[1])


def test_what_is_rebuilt_is_the_same_to_the_bit(
    tuned: tuple[Path, Path], rebuilt: slipstream.CompileResult, tiny_artifact: Path
) -> None:
    before = Manifest.read(tuned[0] / "model")
    assert rebuilt.manifest.checksums == before.checksums
    assert rebuilt.manifest.checksums != Manifest.read(tiny_artifact).checksums  # the default programs are others
    assert rebuilt.manifest.tuned["programs"] == before.tuned["programs"]
    assert not rebuilt.warnings
    image = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    first, second = slipstream.load(tuned[0])(image)[0], slipstream.load(rebuilt.directory)(image)[0]
    assert np.asarray(first).tobytes() == np.asarray(second).tobytes()


def test_it_has_the_chosen_programs_on_a_line_each(tuned: tuple[Path, Path]) -> None:
    lock = Lock.read(tuned[1])
    assert lock.text() == tuned[1].read_text()
    assert lock.operators.keys() == operators().keys()
    default = {key: (space(key).default.sketch, None) for key in operators()}
    assert any(one.program and one.program[0] != default[key][0] for key, one in lock.operators.items())
    lines = tuned[1].read_text().splitlines()
    for key in lock.operators:
        assert sum(line.startswith(f'  "{key}": {{') for line in lines) == 1
    (latency,) = lock.latency.values()
    assert latency.against == "onnxruntime"
    assert latency.low <= latency.times_as_fast <= latency.high
    assert lock.target == resolve_target()


def test_choices_of_the_build_are_those_of_the_lock_file(edited: Callable[[Edit], Path], tmp_path: Path) -> None:
    def one_thread(content: dict[str, Any]) -> None:
        (threads,) = content["build"]["step_threads"]
        content["build"]["step_threads"] = [[1] * len(threads)]
        content["build"]["exact_operators"] = [next(iter(content["operators"]))]

    made = slipstream.compile(MODEL, tmp_path / "model", lock=edited(one_thread)).manifest
    assert set(made.step_threads) == {1}
    assert made.exact_operators == (next(iter(operators())),)


def retrained(path: Path) -> Path:
    """The same network with other weights."""
    network = zoo.build("tiny_cnn")
    for tensor in network.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim == 4:
            tensor.CopyFrom(numpy_helper.from_array(values * np.float32(1.5), tensor.name))
    onnx.save(network, path)
    return path


@pytest.mark.slow
def test_other_weights_get_the_same_programs_and_a_warning(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    made = slipstream.compile(retrained(tmp_path / "retrained.onnx"), tmp_path / "model", lock=tuned[1])
    (warning,) = made.warnings
    assert "retrained is not the model of" in warning
    assert made.manifest.tuned["programs"] == Manifest.read(tuned[0] / "model").tuned["programs"]


def test_other_versions_and_machines_are_said(edited: Callable[[Edit], Path]) -> None:
    def change(content: dict[str, Any]) -> None:
        content["versions"]["apache-tvm"] = "0.1"
        content["hardware"]["machine"] = "a machine elsewhere"
        content["hardware"]["threads"] = 4096

    lock = Lock.read(edited(change))
    made_with = dict(json.loads(edited(lambda _: None).read_text())["versions"])
    machine, threads, version = lock.warnings("m", lock.fingerprint, made_with)
    assert "was made on a machine elsewhere" in machine
    assert "is for 4096 threads" in threads
    assert "was made with apache-tvm 0.1:" in version


def _other_decisions(content: dict[str, Any]) -> None:
    entry = next(one for one in content["operators"].values() if any(one["decisions"]))
    entry["decisions"] = [d[::-1] if isinstance(d, list) else d for d in entry["decisions"]]


def _changed_sketch(content: dict[str, Any]) -> None:
    next(iter(content["sketches"].values())).pop()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(format=2), "has the format 2, this Slipstream reads 1"),
        (lambda c: c.pop("operators"), r"is damaged \('operators' is missing\)"),
        (lambda c: c["hardware"].update(architecture="riscv64"), r"\(riscv64\), .* and this machine is"),
        (lambda c: c["hardware"].update(features=["avx9"]), "this CPU lacks avx9: tune on this machine"),
        (_other_decisions, r"is damaged \(its programs are not those that were written\)"),
        (_changed_sketch, r"is damaged \(the sketch \w+ has been changed\)"),
        (lambda c: c["sketches"].clear(), r"is damaged \(the sketch \w+ of the operator"),
        (lambda c: c["build"].update(step_threads=[[1]]), "threads are given for 1 steps"),
    ],
)
def test_what_does_not_fit_is_one_line(change: Edit, said: str, edited: Callable[[Edit], Path], tmp_path: Path) -> None:
    with pytest.raises(slipstream.SlipstreamError, match=said) as caught:
        slipstream.compile(MODEL, tmp_path / "model", lock=edited(change))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_another_model_is_refused(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"has no program for conv2d .* of small: it is for another model, shape"):
        slipstream.compile(small_model(batch=1), tmp_path / "model", lock=tuned[1])


@pytest.mark.parametrize("text", ["", "{", "<<<<<<< HEAD\n{}", "[]", '{"format": 1}', "\x00"])
def test_a_damaged_file_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.lock").write_text(text)
    with pytest.raises(LockError, match=r"x\.lock is damaged .*: take it from version control again") as caught:
        Lock.read(tmp_path / "x.lock")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"there is no lock file .*: write one with 'slipstream tune"):
        Lock.read(tmp_path / "none.lock")
    with pytest.raises(LockError, match=r"cannot read .*: Is a directory"):
        Lock.read(tmp_path)
    with pytest.raises(LockError, match="cannot write the lock file"):
        slipstream.tune(model(), tmp_path / "s", trials=1, lock=tmp_path / "no" / "x.lock")
    assert not (tmp_path / "s").exists()


def test_a_file_that_is_no_lock_file_is_not_replaced(tmp_path: Path) -> None:
    for name, content in {"m.onnx": small_model().SerializeToString(), "notes.txt": b"do not lose me"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(LockError, match=f"{name} is there and is no lock file"):
            slipstream.tune(model(), tmp_path / "s", trials=1, lock=tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(LockError, match="is no lock file"):
        lock_file("/dev/null")
    assert not (tmp_path / "s").exists()
    for text in ("", "\n", "{", '{"format": 2}', "<<<<<<< HEAD\n{}"):
        (tmp_path / "x.lock").write_text(text)
        assert lock_file(tmp_path / "x.lock") == tmp_path / "x.lock"


def test_threads_and_target_come_from_the_lock_file(tuned: tuple[Path, Path]) -> None:
    lock = Lock.read(tuned[1])
    assert lock.target_here(threads=lock.target.threads) == lock.target
    with pytest.raises(LockError, match="leave out --target, --dtype and --threads"):
        lock.target_here(threads=lock.target.threads + 1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "SECONDS", 0.2)


def outcome(result: slipstream.CheckResult) -> dict[str, bool | None]:
    return {part.name: part.passed for part in result.parts}


@pytest.mark.usefixtures("quick")
def test_a_check_compares_the_ratio_to_the_other_runtime(
    rebuilt: slipstream.CompileResult, edited: Callable[[Edit], Path]
) -> None:
    was_fast = edited(lambda c: c["latency"].update(times_as_fast=1000.0, low=990.0, high=1010.0))
    failed = slipstream.check(rebuilt.directory, was_fast)
    assert outcome(failed) == {"programs": True, "results": True, "speed": False}
    assert failed.regression is not None
    assert failed.regression > 5
    assert failed.measured is not None
    assert failed.measured.against == "onnxruntime"


@pytest.mark.parametrize(
    ("recorded", "now", "beyond", "clear"),
    [
        ((1.5, 1.45, 1.55), (1.4, 1.35, 1.45), False, True),
        ((1.5, 1.45, 1.55), (1.2, 1.15, 1.25), True, True),
        ((1.5, 1.15, 1.55), (1.2, 1.10, 1.25), True, False),
        ((1.2, 1.15, 1.25), (1.5, 1.45, 1.55), False, True),
    ],
)
def test_a_regression_counts_if_it_is_beyond_the_noise(
    recorded: tuple[float, ...], now: tuple[float, ...], beyond: bool, clear: bool, tuned: tuple[Path, Path]
) -> None:
    checking = _Check(Lock.read(tuned[1]), 0.1, lambda stage: None)
    figures = [LockedLatency(1e-3, "onnxruntime", *three) for three in (recorded, now)]
    regression, is_clear = checking.judge(*figures)
    assert (regression > checking.max_regression, is_clear) == (beyond, clear)
    assert regression == pytest.approx(recorded[0] / now[0] - 1)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_check_rebuilds_a_model(tuned: tuple[Path, Path]) -> None:
    lenient = slipstream.check(MODEL, tuned[1], max_regression=5.0)
    assert outcome(lenient) == {"programs": True, "results": True, "speed": True}


def test_a_check_finds_other_programs_and_wrong_results(
    tuned: tuple[Path, Path], rebuilt: slipstream.CompileResult, tiny_artifact: Path, tmp_path: Path
) -> None:
    untuned = slipstream.check(tiny_artifact, tuned[1])
    assert outcome(untuned) == {"programs": False, "results": True, "speed": None}
    assert "has other programs than" in untuned.parts[0].text
    broken = tmp_path / "broken"
    shutil.copytree(rebuilt.directory, broken)
    weights = np.fromfile(broken / "weights.bin", np.float32)
    (weights * np.float32(1.1)).tofile(broken / "weights.bin")
    manifest = json.loads((broken / "manifest.json").read_text())
    manifest["checksums"]["weights.bin"] = checksum(broken / "weights.bin")
    (broken / "manifest.json").write_text(json.dumps(manifest))
    wrong = slipstream.check(broken, tuned[1])
    assert not wrong.passed
    assert outcome(wrong) == {"programs": True, "results": False, "speed": None}
    assert "does not match onnxruntime" in wrong.parts[1].text
