"""The lock file of a model for several shapes: programs of all, and what was chosen in building each."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import slipstream
from slipstream.artifact import side_by_side
from slipstream.artifact.lock import Lock, LockError
from slipstream.artifact.manifest import Manifest
from tests.session.synthetic import SyntheticMeasurer
from tests.session.test_shapes import LABELS, two_layers


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two shapes, its session and its lock file."""
    folder = tmp_path_factory.mktemp("locked")
    onnx.save(two_layers(), folder / "two_layers.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "SECONDS", 0.1)
        slipstream.tune(
            folder / "two_layers.onnx",
            folder / "session",
            trials=16,
            settings={"slot_trials": 4},
            search="random",
            shapes={"x": "2,4x8"},
            pad=True,
            measurer=lambda context: SyntheticMeasurer(),
            lock=folder / "slipstream.lock",
        )
    return folder


@pytest.fixture(scope="module")
def rebuilt(locked: Path) -> slipstream.CompileResult:
    return slipstream.compile(locked / "two_layers.onnx", locked / "rebuilt", lock=locked / "slipstream.lock")


def test_all_shapes_are_rebuilt_to_the_bit(locked: Path, rebuilt: slipstream.CompileResult) -> None:
    lock, before = Lock.read(locked / "slipstream.lock"), Manifest.read(locked / "session" / "model")
    assert tuple(lock.choices) == tuple(lock.latency) == LABELS
    assert lock.text() == (locked / "slipstream.lock").read_text()
    assert any(one.program for one in lock.operators.values())
    assert rebuilt.manifest.checksums == before.checksums
    assert (rebuilt.manifest.choices, rebuilt.manifest.pad) == (before.choices, True)
    assert not rebuilt.warnings
    untuned = slipstream.compile(locked / "two_layers.onnx", locked / "untuned", shapes={"x": "2,4x8"}, pad=True)
    assert untuned.manifest.checksums != before.checksums


def test_what_was_chosen_for_one_shape_is_used_for_that_one(
    locked: Path, rebuilt: slipstream.CompileResult, tmp_path: Path
) -> None:
    content = json.loads((locked / "slipstream.lock").read_text())
    key = next(key for key, one in content["operators"].items() if one["calls"] == len(LABELS))  # of both shapes
    content["build"][LABELS[1]]["exact_operators"] = [key]
    (tmp_path / "x.lock").write_text(json.dumps(content))
    made = slipstream.compile(locked / "two_layers.onnx", tmp_path / "model", lock=tmp_path / "x.lock")
    read = Manifest.read(made.directory)
    assert [own.exact_operators for own in read.single_shapes] == [(), (key,)]
    assert read.choices == Lock.read(tmp_path / "x.lock").choices
    assert read.choices[LABELS[0]] == rebuilt.manifest.choices[LABELS[0]]


def test_a_check_is_of_every_shape(
    locked: Path, rebuilt: slipstream.CompileResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "SECONDS", 0.1)
    content = json.loads((locked / "slipstream.lock").read_text())
    content["latency"][LABELS[1]].update(times_as_fast=1e6, low=9e5, high=2e6)
    (tmp_path / "x.lock").write_text(json.dumps(content))
    result = slipstream.check(rebuilt.directory, tmp_path / "x.lock", max_regression=100.0)
    outcome = {part.name: part.passed for part in result.parts}
    assert outcome == {"programs": True, "results": True, "speed 2x8": True, "speed 4x8": False}
    assert result.recorded is not None
    assert result.recorded.times_as_fast == 1e6


def test_other_shapes_are_refused(locked: Path, tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"is for the shapes 2x8; 4x8: leave out --shape"):
        slipstream.compile(
            locked / "two_layers.onnx", tmp_path / "model", lock=locked / "slipstream.lock", shapes={"x": "2x8"}
        )
