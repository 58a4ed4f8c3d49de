"""The process that runs ONNX Runtime may die or take too long: the caller gets one line, and the next call works."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import onnx
import pytest

from slipstream.errors import ModelError
from slipstream.frontends import sandbox
from slipstream.frontends.onnx_import import clean_onnx
from tests.conftest import small_model


def prepared() -> str:
    return str(clean_onnx(small_model(), {}, {})[1]["fingerprint"])


def test_it_is_started_again_after_its_death() -> None:
    before = prepared()
    worker = sandbox._worker._process
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert prepared() == before
    assert sandbox._worker._process is not worker


def test_a_job_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared()
    monkeypatch.setattr(sandbox, "_SECONDS", 0.0)
    with pytest.raises(ModelError, match=r"gave up on this model \(took longer than 0 s\)"):
        prepared()
    monkeypatch.undo()
    assert prepared()


def test_errors_of_ours_come_back_as_themselves(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="ONNX Runtime cannot load the model"):
        sandbox.call("run", model=str(tmp_path / "none.onnx"), feeds=[], results=[])


def test_a_path_is_that_of_the_caller_wherever_the_sandbox_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prepared()
    onnx.save(small_model(), str(tmp_path / "model.onnx"))
    monkeypatch.chdir(tmp_path)
    assert clean_onnx(Path("model.onnx"), {}, {})[1]["fingerprint"] == before
